"""Request, Reply, ReplyChunk and Batch; their bytes are msgpack, versioned, never pickle.

Redis is a socket that others may write to, so decoding trusts nothing: a foreign version, a wrong
shape or a pickle raises `ProtocolError` and touches nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Self

from msgspec import DecodeError, Struct, msgpack

# What ingresses and nodes have to agree on to share a queue: the bytes here, and what the keys, the
# scripts and the records of open requests in batching/store/ mean. Releases that do not agree have
# queues of their own (docs/adr/0016-releases.md).
WIRE_VERSION = 2

# A body of up to this many bytes travels inside the request's record; a larger one has its own key,
# written by SET and read by MGET, because Lua copies every argument (docs/adr/0001).
INLINE_LIMIT_BYTES = 16 * 1024

# The content type of a body that the Open Inference Protocol's rules are for; its parameter `json`
# says how many of its bytes are JSON, before those of the tensors. No client can set it.
OPEN_INFERENCE_TYPE = "application/vnd.ferry.open-inference"


class ProtocolError(ValueError):
    """Bytes that no version of this program wrote."""


_encode = msgpack.Encoder().encode
_decoder = cache(msgpack.Decoder)


class _Array(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Fields that are an array on the wire, and whose types are checked when it is read."""


class _Message(_Array, frozen=True, tag=WIRE_VERSION):
    """What is sent by itself: the first element of its array is the version."""

    def encode(self) -> bytes:
        """Bytes for the wire."""
        return _encode(self)

    @classmethod
    def decode(cls, wire: bytes) -> Self:
        """Returns what `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        try:
            message: Self = _decoder(cls).decode(wire)
        except (DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(str(error)) from error
        return message


class Part(_Array, frozen=True):
    """One named value of a request: a form field, a file, or the whole body under `body`."""

    name: str
    content_type: str
    content: bytes


class Request(_Message, frozen=True):
    """What a client asked of a model, undecoded: the worker turns parts into Python values."""

    headers: Mapping[str, str]
    parts: Sequence[Part]

    def encode(self) -> bytes:
        """Bytes for the wire, which are held for as long as the client waits."""
        wire = _encode(self)
        # msgspec makes room for half as much again, and gives nothing of it back.
        return bytes(memoryview(wire)) if len(wire) > INLINE_LIMIT_BYTES else wire


class BatchTiming(_Array, frozen=True):
    """What the worker measured; rides on the reply so that the ingress can publish it.

    `is_first` marks the one reply of each batch that speaks for the batch in the histograms.
    """

    batch_size: int
    queue_us: int
    handler_us: int
    is_first: bool


class Reply(_Message, frozen=True):
    """The one answer to a request.

    With `error_type` set, `body` is the message of TorchServe's JSON error and `reason` its stable
    word; otherwise `body` is sent as it is. `chunks` is how many pieces of the answer went before:
    `body` is then the last piece, or the answer ends broken.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    phrase: str = ""
    error_type: str = ""
    reason: str = ""
    timing: BatchTiming | None = None
    chunks: int = 0


class ReplyChunk(_Message, frozen=True):
    """A piece of an answer that is sent while its handler still runs.

    Pieces are numbered from 0 by `index`; status and headers are the answer's, and count on the
    first one only.
    """

    index: int
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}


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
        """Returns the request's id."""
        return self.owned.request_id


@dataclass(frozen=True, slots=True)
class Batch:
    """What the handler gets at once, in arrival order."""

    items: Sequence[Claimed]

    def __len__(self) -> int:
        return len(self.items)
