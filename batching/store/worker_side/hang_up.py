"""Ends a blocking read from a signal handler or another thread."""

import contextlib
import socket
from typing import Any


def hang_up(connection: Any) -> None:
    """Whoever reads from this connection finds it closed; safe in a signal handler."""
    if (opened := getattr(connection, "_sock", None)) is not None:
        with contextlib.suppress(OSError):
            # Not its own `shutdown`, which takes a TLS session from under the read.
            socket.socket.shutdown(opened, socket.SHUT_RDWR)
