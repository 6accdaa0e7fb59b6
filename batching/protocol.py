"""Defines Request, Reply, ReplyChunk and Batch; their bytes are versioned msgpack, never pickle.

Redis is a socket that others may write to, so decoding trusts nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import DecodeError, Struct, msgpack
from msgspec.structs import replace

# Ingresses and nodes that share a queue must agree on the bytes here, and on the keys, scripts and
# records of batching/store/. Releases that do not agree have queues of their own (ADR 0016).
WIRE_VERSION = 2

# A body of up to this many bytes travels inside the request's record; a larger one has its own key,
# written by SET and read by MGET, because Lua copies every argument (docs/adr/0001).
INLINE_LIMIT_BYTES = 16 * 1024

# The content type of a body under the Open Inference Protocol. Its parameter `json` says how many
# of the bytes are JSON, before those of the tensors. No client can set this type.
OPEN_INFERENCE_TYPE = "application/vnd.ferry.open-inference"


class ProtocolError(ValueError):
    """Says that the bytes are not a message of this wire version."""


if TYPE_CHECKING:
    Content = bytes | bytearray
    Body = bytes | memoryview
else:
    # msgspec writes all of them, and reads what a handler, or a client, is given.
    Content, Body = bytearray, bytes

_encode = msgpack.Encoder().encode
_decoder = cache(msgpack.Decoder)
_EMPTY = _encode(b"")


def _bytes_header(size: int) -> bytes:
    """Returns what msgpack writes before this many bytes, which are more than 255."""
    return b"\xc5" + size.to_bytes(2) if size < 2**16 else b"\xc6" + size.to_bytes(4)


class _Array(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """An array of fields on the wire; reading it checks their types."""


class _Message(_Array, frozen=True, tag=WIRE_VERSION):
    """A message of its own: the first element of its array is the version."""

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, wire: bytes | bytearray | memoryview) -> Self:
        """Parses what `encode` wrote; raises ProtocolError at another version or shape."""
        try:
            message: Self = _decoder(cls).decode(wire)
        except (DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(str(error)) from error
        return message


class Part(_Array, frozen=True):
    """One named value of a request: a form field, a file, or the whole body under `body`."""

    name: str
    content_type: str
    content: Content


class Wire(NamedTuple):
    """A message's bytes in pieces, so that a large body is never copied."""

    head: bytes  # all of them if there are few enough for a script, and only then
    body: bytes | bytearray | memoryview = b""
    tail: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.body) + len(self.tail)

    def without_body(self) -> bytes:
        """Returns a request's bytes without its body: that of the last part, or all of them."""
        return self.head and self.head[: -len(_bytes_header(len(self.body)))] + _EMPTY


NO_WIRE = Wire(b"")


class Request(_Message, frozen=True):
    """A client's request, undecoded: the worker turns its parts into Python values."""

    headers: Mapping[str, str]
    parts: Sequence[Part]

    def to_wire(self) -> Wire:
        """Encodes the request; a large content of its last part is the wire's body itself.

        msgpack's arrays have no end mark: head and body together are what `encode` writes.
        """
        last = self.parts[-1] if self.parts else None
        if last is None or len(last.content) <= INLINE_LIMIT_BYTES:
            wire = _encode(self)
            if len(wire) <= INLINE_LIMIT_BYTES:
                return Wire(wire)
            # The ingress holds these bytes while the client waits, and msgspec allocates half as
            # much again.
            return Wire(b"", bytes(memoryview(wire)))
        empty = Part(last.name, last.content_type, b"")
        head = _encode(Request(self.headers, [*self.parts[:-1], empty]))
        return Wire(head[: -len(_EMPTY)] + _bytes_header(len(last.content)), last.content)

    @classmethod
    def with_body(cls, wire: bytes, body: bytearray) -> Self:
        """Parses what `Wire.without_body` wrote; the last part's content becomes this bytearray."""
        if not wire:
            return cls.decode(body)
        request = cls.decode(wire)
        if not request.parts:
            raise ProtocolError("a body without a part")
        *others, last = request.parts
        return cls(request.headers, [*others, Part(last.name, last.content_type, body)])


class ClosedBy(StrEnum):
    """Why a batch left when it did."""

    FULL = "full"
    DELAY = "delay"  # the oldest request had waited for max_batch_delay
    ADAPTIVE = "adaptive"  # this policy expected nothing of a longer wait
    IDLE = "idle"  # a free worker took what was there, and waits for no more


class BatchTiming(_Array, frozen=True):
    """Holds the worker's measurements, which the ingress publishes."""

    batch_size: int
    queue_us: int
    handler_us: int
    is_first: bool  # of its batch, which this one reply counts in the histograms
    closed_by: ClosedBy = ClosedBy.FULL
    is_unbatched: bool = False  # the batch failed, and its requests succeeded one by one


class Reply(_Message, frozen=True):
    """Answers one request; with `error_type`, `body` is the message of TorchServe's JSON error.

    After `chunks` pieces of a streamed answer, `body` is the last piece, or the answer ends broken.
    """

    status: int
    body: Body
    headers: Mapping[str, str] = {}
    phrase: str = ""
    error_type: str = ""
    reason: str = ""
    timing: BatchTiming | None = None
    chunks: int = 0

    def to_wire(self, prefix: bytes) -> Wire:
        """Encodes the prefix and the reply, whose body, of more than 255 bytes, stays itself."""
        rest = _encode(replace(self, body=b""))
        # The array's length and the version have a byte each.
        start = 2 + len(_encode(self.status))
        head = prefix + rest[:start] + _bytes_header(len(self.body))
        return Wire(head, self.body, rest[start + len(_EMPTY) :])


class ReplyInPlace(Reply, frozen=True, tag=WIRE_VERSION):
    """A reply whose body is a part of the bytes that it was decoded from."""

    body: memoryview


class ReplyChunk(_Message, frozen=True):
    """A piece of an answer that is sent while its handler still runs."""

    index: int  # from 0
    body: bytes
    # The answer's; they count on the first piece only.
    status: int = 200
    headers: Mapping[str, str] = {}


# Stands for the ingress of a request that nobody waits for, and whose reply is kept.
JOB = "job"


class Owned(Struct, frozen=True, gc=False):
    """Identifies a claimed request: its id, the attempt, and the ingress that waits for it."""

    request_id: str
    attempt: int
    ingress_id: str

    @property
    def is_of_job(self) -> bool:
        return self.ingress_id == JOB


class Claimed(Struct, frozen=True, gc=False):
    """A request that this worker owns until it replies or loses the lease."""

    owned: Owned
    queue_us: int
    request: Request

    @property
    def request_id(self) -> str:
        return self.owned.request_id


@dataclass(frozen=True, slots=True)
class Batch:
    """Holds the requests that a handler gets at once, in order of arrival."""

    items: Sequence[Claimed]
    closed_by: ClosedBy = ClosedBy.FULL

    def __len__(self) -> int:
        return len(self.items)


# Many per system call; `pop` and `append` are atomic, so any thread may ask.
_made_ids: list[str] = []


def fresh_request_id() -> str:
    """Returns a new UUID4 as text: 122 random bits that cannot be guessed; not after a fork."""
    while True:
        try:
            return _made_ids.pop()
        except IndexError:
            digits = os.urandom(16 * 256).hex()
            for start in range(0, len(digits), 32):
                h = digits[start : start + 32]
                variant = "89ab"[int(h[16], 16) & 3]
                _made_ids.append(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}")
