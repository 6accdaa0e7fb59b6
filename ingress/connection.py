"""A client's socket, beside granian, which cannot wait for a slow client nor end a stream broken.

granian takes the pieces of an answer as fast as they are given, and keeps what the client has not
read; and it ends each stream as if it were whole. The socket tells the first and does the second.
"""

import asyncio
import contextlib
import fcntl
import ipaddress
import os
import socket
import stat
import struct
import termios

from ingress.rsgi import HttpScope

STALL_S = 10.0
POLL_S = 0.01

_OPEN_FILES = "/dev/fd"
# The kernel's send buffer grows with what a connection carries; an eighth of it says that the
# client is behind, and leaves a fast one no gap.
_BEHIND_SHARE = 8
_BEHIND_BYTES = 16 * 1024


class SlowClient(Exception):
    """The client has read nothing for too long."""


class Connection:
    """One client's TCP connection to this process."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client

    @classmethod
    def of(cls, scope: HttpScope) -> "Connection | None":
        """The connection that this request came by; None where its ends have no name (unix)."""
        try:
            peer = _address(scope.client)
            port = int(scope.server.rpartition(":")[2])
        except ValueError:
            return None
        for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - some hundred names, on the event loop
            found = _open_socket(int(name), peer, port)
            if found is not None:
                return cls(found)
        return None

    async def keep_pace(self) -> None:
        """The client is not far behind what was sent.

        Raises:
            SlowClient: it does not go on reading.
        """
        unsent = self._unsent_bytes()
        stalled_s = 0.0
        while unsent > self._limit_bytes():
            await asyncio.sleep(POLL_S)
            before, unsent = unsent, self._unsent_bytes()
            stalled_s = stalled_s + POLL_S if unsent >= before else 0.0
            if stalled_s > STALL_S:
                raise SlowClient

    def break_off(self) -> None:
        """The client sees the connection end; nothing more can be written to it."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """This end of it is left to granian alone."""
        self._client.close()

    def _unsent_bytes(self) -> int:
        try:
            answer = fcntl.ioctl(self._client, termios.TIOCOUTQ, b"\0" * 4)
        except OSError:  # not on this system, or the client has gone
            return 0
        return int(struct.unpack("i", answer)[0])

    def _limit_bytes(self) -> int:
        buffer_bytes = self._client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return max(_BEHIND_BYTES, buffer_bytes // _BEHIND_SHARE)


def _address(text: str) -> tuple[object, int]:
    host, _, port = text.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")), int(port)


def _open_socket(number: int, peer: tuple[object, int], port: int) -> socket.socket | None:
    """A socket of our own on this descriptor's connection, if it is the one."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        borrowed = socket.socket(fileno=number)
    except OSError:  # closed since it was listed
        return None
    try:
        if not _is_between(borrowed, peer, port):
            return None
        # Not socket.dup: it would make the connection a blocking one, for granian too.
        own = socket.socket(fileno=os.dup(number))
    except OSError:
        return None
    finally:
        borrowed.detach()
    if _is_between(own, peer, port):
        return own
    own.close()  # the number has become another file's meanwhile
    return None


def _is_between(connection: socket.socket, peer: tuple[object, int], port: int) -> bool:
    try:
        remote, local = connection.getpeername(), connection.getsockname()
        return (ipaddress.ip_address(remote[0]), remote[1], local[1]) == (*peer, port)
    except (OSError, ValueError, IndexError):
        return False
