"""RQ's names: of its queue of control jobs, and in a cluster, where all are in one slot.

RQ changes several keys in one transaction and names them itself (`rq:queues`, `rq:job:ID`, ...).
In a cluster the names are completed on the wire: `rq:x` is sent as `{ferry}:rq:x` and comes back as
`rq:x`, so RQ sees what it knows and the server sees keys that are on one node. On a single server,
and behind sentinels, the names stay RQ's own.
"""

from typing import Any

from redis.connection import HiredisRespSerializer

from batching.store.keys import HOME

QUEUE_NAME = "ferry-control"

_PREFIX = f"{HOME}:"
_PREFIX_BYTES = _PREFIX.encode()


def waiting_jobs(*, is_cluster: bool) -> str:
    """Returns the key of the list of control jobs that no node has begun, for other clients."""
    name = f"rq:queue:{QUEUE_NAME}"
    return _PREFIX + name if is_cluster else name


class RqPacker(HiredisRespSerializer):
    """Packs commands with the names that the server knows."""

    def pack(self, *arguments: Any) -> Any:
        return super().pack(*map(_sent, arguments))


def _sent(argument: Any) -> Any:
    octets = argument.encode() if isinstance(argument, str) else argument
    if isinstance(octets, bytes) and octets.startswith(b"rq:"):
        return _PREFIX_BYTES + octets
    return argument


def received(answer: Any) -> Any:
    """Returns the answer with the names that RQ knows, at any depth."""
    if isinstance(answer, bytes):
        is_of_rq = answer.startswith(_PREFIX_BYTES + b"rq:")
        return answer[len(_PREFIX_BYTES) :] if is_of_rq else answer
    if isinstance(answer, list | set):
        return type(answer)(map(received, answer))
    if isinstance(answer, dict):
        return {received(name): received(value) for name, value in answer.items()}
    return answer
