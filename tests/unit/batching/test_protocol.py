import datetime
import pickle  # noqa: TID251 - what an attacker would send

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from batching.protocol import (
    INLINE_LIMIT_BYTES,
    WIRE_VERSION,
    BatchTiming,
    Part,
    ProtocolError,
    Reply,
    ReplyChunk,
    Request,
)

REQUEST = Request(
    {"content-type": "image/jpeg", "x-note": "schön"},
    [Part("body", "image/jpeg", bytes(range(256))), Part("data", "", b"")],
)
TIMING = BatchTiming(batch_size=8, queue_us=1200, handler_us=40_000, is_first=True)
REPLY = Reply(200, b'{"digit": 3}', {"content-type": "application/json"}, "OK", timing=TIMING)
CHUNK = ReplyChunk(index=1, body=b"\x00piece", status=201, headers={"x-note": "schön"})


class Trap:
    """Unpickled, it makes itself known."""

    was_sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "was_sprung", True))


@pytest.mark.parametrize(
    "message",
    [
        REQUEST,
        Request({}, []),
        REPLY,
        Reply(status=204, body=b""),
        Reply(status=599, body=b"no", error_type="InternalServerException", reason="odd"),
        Reply(status=200, body=b"the last piece", chunks=3),
        CHUNK,
        ReplyChunk(0, b""),
    ],
)
def test_message_survives_the_wire(message):
    assert type(message).decode(message.encode()) == message


# Around what one byte and two bytes can count, and around what a record may hold.
SIZES = [0, 255, 256, 2**14 - 30, 2**14, 2**14 + 1, 2**16 - 1, 2**16]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("first", [[], [Part("a", "", b"before")]], ids=["alone", "last"])
def test_wire_is_the_request_in_one_piece_or_two(size, kind, first):
    # Given
    content = kind(bytes(number % 251 for number in range(size)))
    request = Request({"x-note": "schön"}, [*first, Part("body", "image/jpeg", content)])
    # When
    wire = request.to_wire()
    # Then
    assert wire.head + wire.body == request.encode()
    assert wire.size_bytes == len(request.encode())
    assert Request.decode(wire.head + wire.body) == request
    assert bool(wire.body) == (wire.size_bytes > INLINE_LIMIT_BYTES)
    assert wire.body is content or size <= INLINE_LIMIT_BYTES


@pytest.mark.parametrize(
    "parts", [[], [Part("a", "", b"x" * 2**17), Part("b", "", b"last")]], ids=["none", "first"]
)
def test_wire_is_in_one_piece_unless_the_last_part_is_large(parts):
    request = Request({}, parts)
    head, body, tail = request.to_wire()
    assert request.encode() in (head, body)
    assert head + body + tail == request.encode()


@pytest.mark.parametrize("size", [256, 2**14 + 1, 2**16 - 1, 2**16])
@pytest.mark.parametrize("status", [100, 200, 507])
def test_reply_in_pieces_is_the_reply(size, status):
    # Given
    reply = replace(REPLY, status=status, body=bytes(size))
    # When
    wire = reply.to_wire(b"id")
    # Then
    assert wire.body is reply.body
    assert b"".join(wire) == b"id" + reply.encode()
    assert wire.size_bytes == 2 + len(reply.encode())


@pytest.mark.parametrize("message", [REQUEST, REPLY, CHUNK], ids=["request", "reply", "chunk"])
def test_decode_refuses_every_truncation(message):
    wire = message.encode()
    for length in range(len(wire)):
        with pytest.raises(ProtocolError):
            type(message).decode(bytearray(wire[:length]))


@pytest.mark.parametrize("kind", [Request, Reply, ReplyChunk])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_b08_decode_refuses_a_pickle_and_never_runs_it(kind, protocol):
    with pytest.raises(ProtocolError):
        kind.decode(pickle.dumps(Trap(), protocol=protocol))
    assert not Trap.was_sprung


NO_MESSAGES = {
    "deep arrays": b"\x91" * 100_000 + b"\x00",
    "array of 2**32": b"\xdd\xff\xff\xff\xff",
    "bytes of 2**32": b"\xc6\xff\xff\xff\xffabc",
    "empty": b"",
    "text that is not utf-8": b"\xa3\xff\xfe\xfd",
    "header that is not utf-8": b"\x93\x02\x81\xa1a\xa1\xff\x90",
    "trailing byte": REQUEST.encode() + b"\x00",
    "timestamp": msgpack.encode(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    "extension": msgpack.encode(msgpack.Ext(42, b"x")),
}


@pytest.mark.parametrize("kind", [Request, Reply, ReplyChunk])
@pytest.mark.parametrize("wire", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_decode_refuses_bytes_that_are_no_message(kind, wire):
    with pytest.raises(ProtocolError):
        kind.decode(wire)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Request, ({},)),
        (Request, ({}, [], "more")),
        (Request, ({1: "a"}, [])),
        (Request, ({"a": b"b"}, [])),
        (Request, ({}, [("a", "b", "c")])),
        (Request, ({}, [("a", b"b", b"c")])),
        (Request, ({}, ["abc"])),
        (ReplyChunk, ()),
        (ReplyChunk, ("0", b"", 200, {})),
        (ReplyChunk, (0, "text", 200, {})),
        (ReplyChunk, (0, b"", 200, {"a": 1})),
        (ReplyChunk, (0, b"", 200, {}, 0)),
        (Reply, ("200", b"", {}, "", "", "", None, 0)),
        (Reply, (200, "text", {}, "", "", "", None, 0)),
        (Reply, (200, b"", [], "", "", "", None, 0)),
        (Reply, (200, b"", {"a": b"b"}, "", "", "", None, 0)),
        (Reply, (200, b"", {}, "", "", None, None, 0)),
        (Reply, (200, b"", {}, "", "", "", [1, 2, 3], 0)),
        (Reply, (200, b"", {}, "", "", "", [1, "2", 3, True], 0)),
        (Reply, (200, b"", {}, "", "", "", [1, 2, 3, 4], 0)),
        (Reply, (200, b"", {}, "", "", "", None, "1")),
    ],
    ids=str,
)
def test_message_of_the_wrong_shape_is_refused(kind, fields):
    with pytest.raises(ProtocolError):
        kind.decode(msgpack.encode((WIRE_VERSION, *fields)))


@pytest.mark.parametrize("version", [0, 1, -1, "1", None, [1], True, 1.0])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [(Request, ({}, [])), (Reply, (200, b"", {}, "", "", "", None, 0))],
    ids=repr,
)
def test_message_of_a_foreign_version_is_refused(kind, fields, version):
    kind.decode(msgpack.encode((WIRE_VERSION, *fields)))
    with pytest.raises(ProtocolError):
        kind.decode(msgpack.encode((version, *fields)))
