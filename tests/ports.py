"""Ports of the loopback interface for servers that a test starts."""

import contextlib
import secrets
import socket

# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST, HIGHEST = 20_000, 32_000


class Ports:
    """Gives out ports, one after the other: two calls before the first one is used give two."""

    def __init__(self, last: int | None = None) -> None:
        # A random start, as other processes choose ports, too.
        self._last = LOWEST + secrets.randbelow(HIGHEST - LOWEST) if last is None else last

    def free(self, count: int, *, beside: int = 0) -> int:
        """Returns the first of so many ports in a row that are free now.

        Args:
            count: how many.
            beside: the ports so much higher are free, too; 0 for none.
        """
        while True:
            first, highest = self._last + 1, HIGHEST - count - beside
            if first > highest:
                first = LOWEST + secrets.randbelow(highest - LOWEST)
            self._last = first + count - 1
            wanted = [port + step for step in {0, beside} for port in range(first, first + count)]
            with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                for port in wanted:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first


free_ports = Ports().free
