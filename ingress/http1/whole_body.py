"""The buffer of a body that is read from the socket into the very bytes that are sent on."""

from collections.abc import Sequence

# A client that announces megabytes and sends nothing gets no more memory than this.
FIRST_BYTES = 256 * 1024


class WholeBody:
    """A body of announced length. No two requests share one, so none is ever written to again."""

    def __init__(self, length_bytes: int, received: Sequence[bytes | bytearray]) -> None:
        """Begins with what was received together with the head: less than the whole."""
        self._length_bytes = length_bytes
        self._filled_bytes = sum(map(len, received))
        self.content = bytearray(min(length_bytes, max(FIRST_BYTES, 2 * self._filled_bytes)))
        place = 0
        for chunk in received:
            self.content[place : place + len(chunk)] = chunk
            place += len(chunk)

    def free(self) -> memoryview:
        """Returns the place for the bytes that come next, never empty before the body is whole."""
        missing_bytes = self._length_bytes - len(self.content)
        if missing_bytes and self._filled_bytes == len(self.content):
            self.content.extend(bytes(min(missing_bytes, self._filled_bytes)))
        return memoryview(self.content)[self._filled_bytes :]

    def add(self, count: int) -> bool:
        """Notes that so many bytes have been read; returns whether the body is whole."""
        self._filled_bytes += count
        return self._filled_bytes == self._length_bytes
