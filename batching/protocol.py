"""Request, Reply, ReplyChunk and Batch; their bytes are msgpack, versioned, never pickle.

Redis is a socket that others may write to, so decoding trusts nothing: a foreign version, a wrong
shape or a pickle raises `ProtocolError` and touches nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

WIRE_VERSION = 1

# A body of up to this many bytes travels inside the request's record; a larger one has its own key,
# written by SET and read by MGET, because Lua copies every argument (docs/adr/0001).
INLINE_LIMIT_BYTES = 16 * 1024

# The content type of a body that the Open Inference Protocol's rules are for; its parameter `json`
# says how many of its bytes are JSON, before those of the tensors. No client can set it.
OPEN_INFERENCE_TYPE = "application/vnd.ferry.open-inference"


_TEXT = frozenset({str})
_PART_TYPES: list[type] = [str, str, bytes]
_TIMING_TYPES: list[type] = [int, int, int, bool]
_REPLY_TYPES: list[type] = [int, int, bytes, dict, str, str, str, list, int]
_UNTIMED_REPLY_TYPES = [type(None) if kind is list else kind for kind in _REPLY_TYPES]
_NO_HEADERS: Mapping[str, str] = {}
_pack = msgpack.Packer().pack  # a new Packer takes longer than what it packs


class ProtocolError(ValueError):
    """Bytes that no version of this program wrote."""


# What is made for every request is a tuple: a frozen dataclass takes three times as long to make.


class Part(NamedTuple):
    """One named value of a request: a form field, a file, or the whole body under `body`."""

    name: str
    content_type: str
    content: bytes


class Request(NamedTuple):
    """What a client asked of a model, undecoded: the worker turns parts into Python values."""

    headers: Mapping[str, str]
    parts: Sequence[Part]

    def encode(self) -> bytes:
        """Bytes for the wire."""
        return _pack((WIRE_VERSION, *self))  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, wire: bytes) -> "Request":
        """The request that `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        _, headers, parts = _unpack(wire, length=3)
        if not _is_text_map(headers) or type(parts) is not list:
            raise ProtocolError("request is not (headers, parts)")
        for part in parts:
            if not _has_types(part, _PART_TYPES):
                raise ProtocolError("request part is not (name, type, content)")
        return cls(headers, [Part(*part) for part in parts])


class BatchTiming(NamedTuple):
    """What the worker measured; rides on the reply so that the ingress can publish it.

    `is_first` marks the one reply of each batch that speaks for the batch in the histograms.
    """

    batch_size: int
    queue_us: int
    handler_us: int
    is_first: bool


class Reply(NamedTuple):
    """The one answer to a request.

    With `error_type` set, `body` is the message of TorchServe's JSON error and `reason` its stable
    word; otherwise `body` is sent as it is. `chunks` is how many pieces of the answer went before:
    `body` is then the last piece, or the answer ends broken.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = _NO_HEADERS
    phrase: str = ""
    error_type: str = ""
    reason: str = ""
    timing: BatchTiming | None = None
    chunks: int = 0

    def encode(self) -> bytes:
        """Bytes for the wire."""
        return _pack((WIRE_VERSION, *self))  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, wire: bytes) -> "Reply":
        """The reply that `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        fields = _unpack(wire, length=9)
        _, status, body, headers, phrase, error_type, reason, timing, chunks = fields
        types = [*map(type, fields)]
        if types not in (_REPLY_TYPES, _UNTIMED_REPLY_TYPES) or not _is_text_map(headers):
            raise ProtocolError("reply is not (status, body, headers, ...)")
        if timing is not None:
            if not _has_types(timing, _TIMING_TYPES):
                raise ProtocolError("reply timing has the wrong shape")
            timing = BatchTiming(*timing)
        return cls(status, body, headers, phrase, error_type, reason, timing, chunks)


@dataclass(frozen=True, slots=True)
class ReplyChunk:
    """A piece of an answer that is sent while its handler still runs.

    Pieces are numbered from 0 by `index`; status and headers are the answer's, and count on the
    first one only.
    """

    index: int
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Bytes for the wire."""
        return _pack(  # type: ignore[no-any-return]
            (WIRE_VERSION, self.index, self.body, self.status, self.headers)
        )

    @classmethod
    def decode(cls, wire: bytes) -> "ReplyChunk":
        """The chunk that `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        _, *fields = _unpack(wire, length=5)
        if not _has_types(fields, [int, bytes, int, dict]) or not _is_text_map(fields[3]):
            raise ProtocolError("chunk is not (index, body, status, headers)")
        return cls(*fields)


class Owned(NamedTuple):
    """What a worker says of a request to answer it: which, in which attempt, and for whom."""

    request_id: str
    attempt: int
    ingress_id: str


class Claimed(NamedTuple):
    """A request that this worker owns until it replies or loses the lease."""

    owned: Owned
    queue_us: int
    request: Request

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.owned.request_id


@dataclass(frozen=True, slots=True)
class Batch:
    """What the handler gets at once, in arrival order."""

    items: Sequence[Claimed]

    def __len__(self) -> int:
        return len(self.items)


def _unpack(wire: bytes, *, length: int) -> list[Any]:
    """The fields, the version first."""
    try:
        fields = msgpack.unpackb(wire)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError("not msgpack") from error
    if type(fields) is not list or len(fields) != length:
        raise ProtocolError(f"not {length} fields")
    if type(fields[0]) is not int or fields[0] != WIRE_VERSION:
        raise ProtocolError(f"not wire version {WIRE_VERSION}")
    return fields


def _has_types(values: Any, types: list[type]) -> bool:
    # Exact types: to isinstance, True is a number.
    return type(values) is list and [*map(type, values)] == types


def _is_text_map(value: Any) -> bool:
    return type(value) is dict and (
        not value or {*map(type, value), *map(type, value.values())} == _TEXT
    )
