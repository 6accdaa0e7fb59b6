"""Request, Reply and Batch, and their bytes on the wire: msgpack, versioned, never pickle.

Redis is a socket that others may write to, so decoding trusts nothing: a foreign version, a wrong
shape or a pickle raises `ProtocolError` and touches nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

WIRE_VERSION = 1

# A body of up to this many bytes travels inside the request's hash; a larger one has its own key,
# written by SET and read by MGET, because Lua copies every argument (docs/adr/0001).
INLINE_LIMIT_BYTES = 16 * 1024


class ProtocolError(ValueError):
    """Bytes that no version of this program wrote."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named value of a request: a form field, a file, or the whole body under `body`."""

    name: str
    content_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked of a model, undecoded: the worker turns parts into Python values."""

    headers: Mapping[str, str]
    parts: Sequence[Part]

    def encode(self) -> bytes:
        """Bytes for the wire."""
        parts = [(part.name, part.content_type, part.content) for part in self.parts]
        return msgpack.packb((WIRE_VERSION, self.headers, parts))  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, wire: bytes) -> "Request":
        """The request that `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        headers, parts = _unpack(wire, length=3)
        if not isinstance(headers, dict) or not isinstance(parts, list):
            raise ProtocolError("request is not (headers, parts)")
        try:
            return cls(headers, [Part(name, kind, content) for name, kind, content in parts])
        except (TypeError, ValueError) as error:
            raise ProtocolError("request part is not (name, type, content)") from error


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """What the worker measured; rides on the reply so that the ingress can publish it.

    `is_first` marks the one reply of each batch that speaks for the batch in the histograms.
    """

    batch_size: int
    queue_us: int
    handler_us: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """The one answer to a request.

    With `error_type` set, `body` is the message of TorchServe's JSON error and `reason` its stable
    word; otherwise `body` is sent as it is.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    phrase: str = ""
    error_type: str = ""
    reason: str = ""
    timing: BatchTiming | None = None

    def encode(self) -> bytes:
        """Bytes for the wire."""
        timing = self.timing and (
            self.timing.batch_size,
            self.timing.queue_us,
            self.timing.handler_us,
            self.timing.is_first,
        )
        return msgpack.packb(  # type: ignore[no-any-return]
            (
                WIRE_VERSION,
                self.status,
                self.body,
                self.headers,
                self.phrase,
                self.error_type,
                self.reason,
                timing,
            )
        )

    @classmethod
    def decode(cls, wire: bytes) -> "Reply":
        """The reply that `encode` wrote.

        Raises:
            ProtocolError: foreign version or shape.
        """
        status, body, headers, phrase, error_type, reason, timing = _unpack(wire, length=8)
        if not isinstance(status, int) or not isinstance(body, bytes):
            raise ProtocolError("reply is not (status, body, ...)")
        if not isinstance(headers, dict):
            raise ProtocolError("reply headers are not a map")
        try:
            batch_timing = timing and BatchTiming(*timing)
        except TypeError as error:
            raise ProtocolError("reply timing has the wrong shape") from error
        return cls(status, body, headers, phrase, error_type, reason, batch_timing)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that this worker owns until it replies or loses the lease."""

    request_id: str
    attempt: int
    queue_us: int
    request: Request


@dataclass(frozen=True, slots=True)
class Batch:
    """What the handler gets at once, in arrival order."""

    items: Sequence[Claimed]

    def __len__(self) -> int:
        return len(self.items)


def _unpack(wire: bytes, *, length: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(wire, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError("not msgpack") from error
    if not isinstance(fields, list) or len(fields) != length or fields[0] != WIRE_VERSION:
        raise ProtocolError(f"not wire version {WIRE_VERSION}")
    return fields[1:]
