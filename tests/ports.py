"""Ports of the loopback interface for servers that a test starts."""

import atexit
import contextlib
import itertools
import secrets
import socket
from collections import deque
from collections.abc import Iterable, Iterator

# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST, HIGHEST = 20_000, 32_000
# Redis Cluster talks at a port that is so much higher.
BUS_OFFSET = 10_000
BLOCK, MOST_BLOCKS = 100, 5


class Ports:
    """Gives out ports of a range, one after the other: two calls before the first is used give two.

    Processes that run tests at the same time choose from different blocks of ports: a block is a
    process's for as long as it holds the UDP port of the same number as the block's first one.
    """

    def __init__(self, lowest: int, highest: int, *, beside: int = 0) -> None:
        """Takes no port yet; those `beside` so much higher are free, too."""
        self._firsts = range(lowest, highest, BLOCK)
        self._beside = beside
        self._held: deque[tuple[int, socket.socket]] = deque()
        self._ports: Iterator[int] = iter(())

    def free(self, count: int) -> int:
        """Returns the first of so many ports in a row, at most a block, that are free now."""
        while True:
            row = list(itertools.islice(self._ports, count))
            if len(row) < count:
                self._ports = iter(self._next_block())
            elif _are_free({port + step for step in (0, self._beside) for port in row}):
                return row[0]

    def close(self) -> None:
        """Gives the blocks back."""
        for _, holder in self._held:
            holder.close()
        self._held.clear()

    def _next_block(self) -> range:
        """Returns a block that nobody has, or the one that was used up longest ago."""
        if len(self._held) < MOST_BLOCKS:
            self._held.append(self._take_block())
        else:
            self._held.rotate(-1)
        first, _ = self._held[-1]
        return range(first, first + BLOCK)

    def _take_block(self) -> tuple[int, socket.socket]:
        while True:
            first, holder = secrets.choice(self._firsts), socket.socket(type=socket.SOCK_DGRAM)
            try:
                holder.bind(("127.0.0.1", first))
            except OSError:
                holder.close()
                continue
            return first, holder


def _are_free(ports: Iterable[int]) -> bool:
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        for port in ports:
            held.enter_context(socket.socket()).bind(("127.0.0.1", port))
        return True
    return False


_PORTS = Ports(LOWEST + 2_000, HIGHEST - 2_000)
# For members of a Redis Cluster.
_PORTS_WITH_BUS = Ports(LOWEST, LOWEST + 2_000, beside=BUS_OFFSET)
free_ports, free_ports_with_bus = _PORTS.free, _PORTS_WITH_BUS.free
atexit.register(_PORTS.close)
atexit.register(_PORTS_WITH_BUS.close)
