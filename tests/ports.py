"""Ports of the loopback interface for servers that a test starts."""

import contextlib
import secrets
import socket
from collections import deque

# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST, HIGHEST = 22_000, 30_000
LOWEST_WITH_BUS, HIGHEST_WITH_BUS = 20_000, 22_000
# Redis Cluster talks at a port that is so much higher.
BUS_OFFSET = 10_000
ROW = 10
# A row is this process's, of several that run tests, for as long as it holds the UDP port of the
# row's first number. Those that were chosen longest ago are let go.
_held: deque[socket.socket] = deque()
MOST_HELD = 50


def free_ports(count: int) -> int:
    """Returns the first of so many ports in a row, at most ROW, that are free now."""
    assert count <= ROW
    return _free_row(range(LOWEST, HIGHEST, ROW), count, (0,))


def free_ports_with_bus() -> int:
    """Returns a port for a member of a Redis Cluster."""
    return _free_row(range(LOWEST_WITH_BUS, HIGHEST_WITH_BUS, ROW), 1, (0, BUS_OFFSET))


def _free_row(firsts: range, count: int, offsets: tuple[int, ...]) -> int:
    while True:
        first, holder = secrets.choice(firsts), socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", first))
            with contextlib.ExitStack() as tried:
                for port in (first + step + offset for step in range(count) for offset in offsets):
                    tried.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        _held.append(holder)
        if len(_held) > MOST_HELD:
            _held.popleft().close()
        return first
