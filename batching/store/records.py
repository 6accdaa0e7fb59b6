r"""Reads and writes the text in Redis: open requests, replies, and records that others wrote.

An open request's record: a line of text, then its bytes, as a field of one hash.

    <attempts> <owner> <chunks> <queued_us> <age_us> <ttl_ms> <ingress id>\n<wire>

The fields, which scripts find by their places:

    attempts   how many have failed
    owner      of a crash suspect that waits: the worker that had it, and may still answer it; `-`
               for all others, which belong to the worker that has them leased
    chunks     how many pieces of the answer have been sent; from the first one on, no wire is kept
    queued_us  Redis' time of the submit
    age_us     how long it had been at the ingress by then; `-` where Redis had lost it before
    ttl_ms     from the submit to the deadline
    ingress id of the one that waits for the reply; `job` where nobody does, and the reply is kept
    wire       the request's bytes; empty if they have a key of their own; or, if the body is in
               memory that the workers share (arena.py), `@`, its place, then the request's bytes
               without it

The value of a reply key is the request id, then one of these:

    <id>!<reason>     the queue itself answered: no attempt or no time is left, or the worker cannot
                      reach the request's body
    <id>@<attempt>    the reply is in `large_replies:<id>:<attempt>`, too large for a script; of
                      a job, in `large_replies:<id>:<attempt>-<worker id>`
    <id>%<place><msgpack>
                      the reply, its body in memory that the ingress shares (arena.py)
    <id><msgpack>     the reply

An entry of the replies list is the same, or the id alone. The id is compared with the one that was
asked for, so that a reply never reaches another client, whatever happens to a connection.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from batching import errors
from batching.protocol import ProtocolError, Reply, ReplyInPlace
from batching.store.arena import NO_MEMORY, Elsewhere, IngressMemory

log = logging.getLogger(__name__)

T = TypeVar("T")

# Parsing raises these at text that is not ours, or of a later version.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


BODY_ELSEWHERE = b"!body_elsewhere"
_MSGPACK = b"\x80"  # a message's first byte is not below it

# Reason -> the error, and its text.
QUEUE_ANSWERS: dict[str, tuple[type[errors.ServeError], str]] = {
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

_ID = re.compile(rb"[\w-]*")


def ids_of(members: Iterable[Any]) -> list[str]:
    """Returns the members of a set of beats that can be names of nodes or workers."""
    return [member.decode() for member in members if member.isascii()]


class RecordReader(Generic[T]):
    """Reads the records of one kind; an unreadable one is logged once."""

    def __init__(self, kind: str, parse: Callable[[bytes], T]) -> None:
        self._kind = kind
        self._parse = parse
        self._told: dict[bytes, bytes] = {}

    def read(
        self, records: Mapping[Any, Any], former: Mapping[str, T] | None = None
    ) -> dict[str, T]:
        """Returns the records by name; takes an unreadable one from `former`, or leaves it out."""
        readable: dict[str, T] = {}
        for name, record in records.items():
            try:
                readable[name.decode()] = self._parse(record)
            except UNREADABLE as error:
                if self._told.get(name) != record:
                    self._told[name] = record
                    shown = name.decode(errors="backslashreplace")
                    log.error("unreadable record %s=%s: %r", self._kind, shown, error)
                known_as = name.decode(errors="replace")
                if former is not None and known_as in former:
                    readable[known_as] = former[known_as]
        return readable


class OpenRecord(Struct, frozen=True, gc=False):
    """Holds the fields of a record that a worker needs."""

    attempts: int
    queued_us: int
    age_us: int
    ingress_id: str
    wire: bytes


def rest_of_record(ingress_id: str, ttl_ms: int, age_us: int | None, wire: bytes) -> bytes:
    """Returns the part of a record that the ingress knows; `submit.lua` puts the rest in front."""
    age = "-" if age_us is None else age_us
    return f"{age} {ttl_ms} {ingress_id}\n".encode() + wire


def read_record(record: bytes) -> OpenRecord:
    """Parses a record that `claim.lua` has found well-formed."""
    line, _, wire = record.partition(b"\n")
    attempts, _, _, queued_us, age_us, _, ingress_id = line.split(b" ")
    age = int(age_us) if age_us.isdigit() else 0
    ingress = ingress_id.decode(errors="replace")
    return OpenRecord(int(attempts), int(queued_us), age, ingress, wire)


class LargeReply(Exception):
    """Says that the reply has a key of its own."""

    def __init__(self, attempt: str) -> None:
        super().__init__(attempt)
        self.attempt = attempt


class BodyElsewhere(Exception):
    """Says that the worker cannot reach the request's body, and has run nothing."""


class AnswerGone(Exception):
    """Says that the answer's body went with its worker before the ingress had read it."""


def named_request(entry: bytes) -> str:
    """Returns the id at the start of an entry of the replies list; of garbage, any text."""
    # No character of an id can follow it: msgpack begins with a byte beyond ASCII.
    match = _ID.match(entry)
    return match[0].decode() if match else ""


def decode_reply(
    request_id: str, value: bytes | memoryview, memory: IngressMemory = NO_MEMORY
) -> Reply:
    """Decodes a reply key's value; in a memoryview the reply's body stays where it is.

    Raises:
        LargeReply: it is in a key of its own.
        BodyElsewhere, AnswerGone: the request is to be submitted again.
        ProtocolError: the value is not a reply to this request.
    """
    prefix = request_id.encode()
    if value[: len(prefix)] != prefix:
        raise ProtocolError("reply belongs to another request")
    content = value[len(prefix) :]
    if isinstance(content, memoryview):
        return ReplyInPlace.decode(content)
    if (kind := content[:1]) >= _MSGPACK:
        return Reply.decode(content)
    if kind == b"%":
        return _reply_in_memory(content[1:], memory)
    if kind == b"@":
        raise LargeReply(content[1:].decode(errors="replace"))
    if content == BODY_ELSEWHERE:
        raise BodyElsewhere
    if kind == b"!":
        return error_reply(queue_error(content[1:].decode(errors="replace")))
    raise ProtocolError("no reply")


def _reply_in_memory(content: bytes, memory: IngressMemory) -> Reply:
    try:
        body, rest = memory.reader.copy(content, owner_has_to_live=False)
    except Elsewhere as error:
        raise AnswerGone from error
    if body is None:
        raise AnswerGone
    memory.answers["arena"] += 1
    return replace(Reply.decode(rest), body=memoryview(body))


def error_reply(error: errors.ServeError) -> Reply:
    """Returns the reply that tells a client about this error."""
    return Reply(
        status=error.status,
        body=error.message.encode(),
        error_type=error.type,
        reason=error.reason,
    )


def queue_error(reason: str) -> errors.ServeError:
    kind, text = QUEUE_ANSWERS.get(reason, _OTHER_ANSWER)
    return kind(text)
