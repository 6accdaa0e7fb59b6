"""Commands as the bytes that are sent; a large body stands among them as itself."""

from collections.abc import Iterator, Sequence

import hiredis

from batching.protocol import Wire

Command = tuple[str | int | float | bytes, ...]
Buffer = bytes | bytearray | memoryview


def packed(command: Command) -> bytes:
    """Returns the command in one piece."""
    # Its stub says "tuple of one".
    return hiredis.pack_command(command)  # type: ignore[arg-type, no-any-return]


def packed_set(name: str, wire: Wire, ttl_ms: int) -> tuple[bytes, Buffer, bytes]:
    """Returns a SET of a message's bytes; the piece in the middle is the body itself."""
    key, ttl = name.encode(), str(ttl_ms).encode()
    head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (
        *(len(key), key),
        *(wire.size_bytes, wire.head),
    )
    return head, wire.body, b"%b\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (wire.tail, len(ttl), ttl)


def joined(sets: Sequence[tuple[bytes, Buffer, bytes]]) -> Iterator[Buffer]:
    """Yields packed SETs in as few pieces as there can be without a copy of the bodies."""
    before = b""
    for head, body, tail in sets:
        yield before + head
        yield body
        before = tail
    yield before
