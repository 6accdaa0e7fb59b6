"""Calls whose answers are large values, each received in the buffer that it stays in."""

import asyncio
from typing import Any

from redis.exceptions import InvalidResponse

from batching.store.calls import Calls
from batching.store.lost_connections import ASYNC_PARSER

# So much is read of an answer before its length is known, and of its value copied.
LINE_BYTES = 512
_END = b"\r\n"


class BulkCalls(Calls, asyncio.BufferedProtocol):
    """Calls of commands that answer a string, a number or nothing, such as GET and UNLINK."""

    def __init__(self, transport: Any) -> None:
        self._line = memoryview(bytearray(LINE_BYTES))
        self._read = 0
        self._value: memoryview | None = None  # of the answer that is coming in, its end included
        super().__init__(transport)

    def get_buffer(self, _: int) -> memoryview:
        """Returns the place for the next bytes: in the value, or where a line begins."""
        place = self._line if self._value is None else self._value
        return place[self._read :]

    def buffer_updated(self, count: int) -> None:
        """Takes in the answers that are complete."""
        self._read += count
        value = self._value
        if value is None:
            line, self._read = bytes(self._line[: self._read]), 0
            try:
                self._take_lines(line)
            except ValueError as error:
                self._fail(InvalidResponse(str(error)))
                self.give_up()
        elif self._read == len(value):
            self._value, self._read = None, 0
            self._add(value[: -len(_END)])

    def _take_lines(self, octets: bytes) -> None:
        """Takes in whole answers, then the beginning of a value, or of a line."""
        while octets:
            line, found, octets = octets.partition(_END)
            if not found:
                if len(line) == LINE_BYTES:
                    raise ValueError("an answer begins with an endless line")
                self._line[: len(line)] = line
                self._read = len(line)
            elif line[:1] == b"$" and line != b"$-1":
                octets = self._begin_value(int(line[1:]) + len(_END), octets)
            else:
                self._add(_short_answer(line))

    def _begin_value(self, size: int, octets: bytes) -> bytes:
        """Returns what follows the value in these bytes."""
        value = memoryview(bytearray(size))
        there = octets[:size]
        value[: len(there)] = there
        if len(there) == size:
            self._add(value[: -len(_END)])
        else:
            self._value, self._read = value, len(there)
        return octets[size:]


def _short_answer(line: bytes) -> Any:
    if line[:1] == b"-":
        return ASYNC_PARSER.parse_error(line[1:].decode(errors="replace"))
    if line[:1] == b":":
        return int(line[1:])
    if line == b"$-1":
        return None
    raise ValueError(f"an answer begins with {line!r}")
