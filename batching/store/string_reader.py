"""Reads large strings from a connection without copying them."""

from typing import Any

import redis
from redis.connection import DefaultParser

# So much may be read beyond a line or a string, and is copied: a line is shorter.
AHEAD_BYTES = 32
_LINE_END = b"\r\n"
_MISSING = (b"$-1", b"_")  # the second one if the URL asks for RESP3


class StringReader:
    """Reads a list of strings from a socket, each straight into the bytearray that is returned."""

    def __init__(self, sock: Any, ahead: bytes) -> None:
        self._sock = sock
        self._ahead = ahead  # what was read of what comes next

    def read(self) -> list[bytearray | None]:
        """Returns the strings; None for one that does not exist.

        Raises:
            RedisError, OSError: the connection cannot be used any more.
        """
        return [self._string() for _ in range(self._length(b"*"))]

    def _length(self, kind: bytes) -> int:
        while (end := self._ahead.find(_LINE_END)) < 0:
            self._ahead += _some(self._sock.recv(AHEAD_BYTES))
        line, self._ahead = self._ahead[:end], self._ahead[end + len(_LINE_END) :]
        if line in _MISSING:
            return -1
        digits = line.removeprefix(kind)
        if digits == line or not digits.isdigit():
            raise redis.InvalidResponse(f"no length of a string: {line!r}")
        return int(digits)

    def _string(self) -> bytearray | None:
        size = self._length(b"$")
        if size < 0:
            return None
        end, filled = size + len(_LINE_END), len(self._ahead)
        string = bytearray(max(end, filled) + AHEAD_BYTES)
        string[:filled] = self._ahead
        with memoryview(string) as room:
            while filled < end:
                filled += _some(self._sock.recv_into(room[filled:]))
        self._ahead = bytes(string[end:filled])
        # Does not move what stays.
        del string[size:]
        return string


class StringParser(DefaultParser):  # type: ignore[misc, valid-type]
    """redis-py's parser, which hands undecoded strings out as `StringReader` reads them.

    Our clients decode nothing, so `disable_decoding` means nothing else on their connections.
    """

    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        """Returns the next answer; with `disable_decoding` it is a list of strings, or an error."""
        if disable_decoding:
            begin = _some(self._sock.recv(AHEAD_BYTES))
            if begin.startswith(b"*"):
                return StringReader(self._sock, begin).read()
            self._reader.feed(begin)
        return super().read_response(**options)


def _some(received: Any) -> Any:
    if not received:
        raise redis.ConnectionError("Connection closed by server.")
    return received
