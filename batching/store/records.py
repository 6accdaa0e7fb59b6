"""What Redis keeps as text: replies, and records that others have written.

The value of a reply key is the request id, then one of three things:

    <id>!<reason>     the queue itself answered: no attempt or no time is left
    <id>@<attempt>    the reply is in `large_replies:<id>:<attempt>`, too large for a script; of
                      a job, in `large_replies:<id>:<attempt>-<worker id>`
    <id><msgpack>     the reply

An entry of the replies list is the same, or the id alone. The id is compared with the one that was
asked for, so that a reply never reaches another client, whatever happens to a connection.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from batching import errors
from batching.protocol import ProtocolError, Reply, ReplyInPlace

log = logging.getLogger(__name__)

T = TypeVar("T")

# Parsing raises these at text that is not ours, or of a later version.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def ids_of(members: Iterable[bytes]) -> list[str]:
    """Returns the members of a set of beats that can be names of nodes or workers."""
    return [member.decode() for member in members if member.isascii()]


class RecordReader(Generic[T]):
    """Reads the records of one kind; an unreadable one is logged once."""

    def __init__(self, kind: str, parse: Callable[[bytes], T]) -> None:
        self._kind = kind
        self._parse = parse
        self._told: dict[bytes, bytes] = {}

    def read(
        self, records: Mapping[bytes, bytes], former: Mapping[str, T] | None = None
    ) -> dict[str, T]:
        """Returns the records by name; takes an unreadable one from `former`, or leaves it out."""
        found: dict[str, T] = {}
        for name, text in records.items():
            try:
                found[name.decode()] = self._parse(text)
            except UNREADABLE as error:
                self._tell(name, text, error)
                known_as = name.decode(errors="replace")
                if former is not None and known_as in former:
                    found[known_as] = former[known_as]
        return found

    def _tell(self, name: bytes, text: bytes, error: Exception) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            told_as = name.decode(errors="backslashreplace")
            log.error("unreadable record %s=%s: %r", self._kind, told_as, error)


_ID = re.compile(rb"[\w-]*")

# Reason -> the error, and its text.
_QUEUE_ANSWERS: dict[str, tuple[type[errors.ServeError], str]] = {
    "deadline_exceeded": (
        errors.DeadlineExceeded,
        "The request's deadline passed before a worker could take it.",
    ),
    "worker_crashed": (errors.WorkerDied, "Worker died."),
    "out_of_resources": (errors.OutOfResources, "Worker died."),
    "no_worker": (
        errors.NoWorker,
        "The model has no worker left to serve this request. Please use scale workers API to add "
        "workers.",
    ),
    "unregistered": (errors.ModelNotFound, "The model was unregistered while the request waited."),
}
_OTHER_ANSWER = (errors.InternalError, "The request could not be answered.")


class LargeReply(Exception):
    """The reply has a key of its own."""

    def __init__(self, attempt: str) -> None:
        super().__init__(attempt)
        self.attempt = attempt


def named_request(entry: bytes) -> str:
    """Returns the id at the start of an entry of the replies list; of garbage, any text."""
    # No character of an id can follow it: msgpack begins with a byte beyond ASCII.
    found = _ID.match(entry)
    return found[0].decode() if found else ""


def decode_reply(request_id: str, value: bytes | memoryview) -> Reply:
    """Decodes a reply key's value; in a memoryview the reply's body stays where it is.

    Raises:
        LargeReply: it is in a key of its own.
        ProtocolError: the value is not a reply to this request.
    """
    prefix = request_id.encode()
    if value[: len(prefix)] != prefix:
        raise ProtocolError("reply belongs to another request")
    content = value[len(prefix) :]
    if isinstance(content, memoryview):
        return ReplyInPlace.decode(content)
    if content[:1] == b"@":
        raise LargeReply(content[1:].decode(errors="replace"))
    if content[:1] == b"!":
        return error_reply(queue_error(content[1:].decode(errors="replace")))
    return Reply.decode(content)


def error_reply(error: errors.ServeError) -> Reply:
    """Returns the reply that tells a client about this error."""
    return Reply(
        status=error.status,
        body=error.message.encode(),
        error_type=error.type,
        reason=error.reason,
    )


def is_queue_answer(reason: str) -> bool:
    """Returns whether this reason is the queue's own, and no worker's."""
    return reason in _QUEUE_ANSWERS


def queue_error(reason: str) -> errors.ServeError:
    kind, text = _QUEUE_ANSWERS.get(reason, _OTHER_ANSWER)
    return kind(text)
