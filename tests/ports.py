"""Ports of the loopback interface for servers that a test starts."""

import contextlib
import secrets
import socket

# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST, HIGHEST = 20_000, 32_000

# One after the other, so that two calls before the first port is used give two ports; from a random
# start, as other processes choose ports, too.
_last = LOWEST + secrets.randbelow(HIGHEST - LOWEST)


def free_ports(count: int, *, beside: int = 0) -> int:
    """Returns the first of so many ports in a row that are free now.

    Args:
        count: how many.
        beside: the ports so much higher are free, too; 0 for none.
    """
    global _last  # noqa: PLW0603 - of the whole process, as ports are
    while True:
        first, highest = _last + 1, HIGHEST - count - beside
        if first > highest:
            first = LOWEST + secrets.randbelow(highest - LOWEST)
        _last = first + count - 1
        wanted = [port + step for step in {0, beside} for port in range(first, first + count)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in wanted:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
