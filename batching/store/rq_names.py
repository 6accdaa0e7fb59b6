"""RQ in a cluster: all of its keys in one slot.

RQ changes several keys in one transaction and names them itself (`rq:queues`, `rq:job:ID`, ...).
Here the names are completed on the wire: `rq:x` is sent as `{ferry}:rq:x` and comes back as `rq:x`,
so RQ sees what it knows and the server sees keys that are on one node. On a single server, and
behind sentinels, the names stay RQ's own.
"""

from typing import Any

from batching.store.keys import HOME

QUEUE_NAME = "ferry-control"
_OWN = "rq:"
_OWN_BYTES = _OWN.encode()
PREFIX = f"{HOME}:"
_PREFIX_BYTES = PREFIX.encode()
_SENT_BYTES = _PREFIX_BYTES + _OWN_BYTES


def waiting_jobs(*, is_cluster: bool) -> str:
    """Returns the key of the list of control jobs that no node has begun, for other clients."""
    name = f"{_OWN}queue:{QUEUE_NAME}"
    return PREFIX + name if is_cluster else name


class RenamingPacker:
    """Packs commands with the names that the server knows."""

    def __init__(self, packer: Any) -> None:
        self._packer = packer

    def pack(self, *arguments: Any) -> Any:
        return self._packer.pack(*map(_sent, arguments))


def received(answer: Any) -> Any:
    """Returns the answer with the names that RQ knows, at any depth."""
    if isinstance(answer, bytes):
        return answer[len(_PREFIX_BYTES) :] if answer.startswith(_SENT_BYTES) else answer
    if isinstance(answer, list):
        return [received(one) for one in answer]
    if isinstance(answer, dict):
        return {received(name): received(value) for name, value in answer.items()}
    if isinstance(answer, set):
        return {received(one) for one in answer}
    return answer


def _sent(argument: Any) -> Any:
    if isinstance(argument, str) and argument.startswith(_OWN):
        return PREFIX + argument
    if isinstance(argument, bytes) and argument.startswith(_OWN_BYTES):
        return _PREFIX_BYTES + argument
    return argument
