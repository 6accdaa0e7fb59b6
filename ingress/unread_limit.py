"""How long an answer may wait for a client that does not read it."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def limit_unread(port: int, seconds: float) -> None:
    """Connections accepted on this port from now on end when nothing is taken in for so long.

    Without it, a client that never reads holds its connection, and its answer, for as long as it
    likes: granian has no such limit, and hides its socket. This is the kernel's, which connections
    inherit from the socket they came in by. Where this process' descriptors cannot be listed, there
    is no limit.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT") and _DESCRIPTORS.is_dir():
        milliseconds = int(seconds * 1000)
        for descriptor in [int(path.name) for path in _DESCRIPTORS.iterdir()]:
            with contextlib.suppress(OSError), _borrowed(descriptor) as one:
                if _is_listening(one, port):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    one = socket.socket(fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()


def _is_listening(one: socket.socket, port: int) -> bool:
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    is_open = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(is_open) and one.getsockname()[1] == port
