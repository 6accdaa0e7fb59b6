"""Standard input, output and error, which not everybody who starts a program gives it."""

import errno
import io
import os
import sys
from typing import Literal, TextIO

_STANDARD = (0, 1, 2)
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_missing_streams() -> None:
    """Each standard stream that this process was started without is there, and empty.

    Otherwise `sys.stdout` is None, and the next file or socket is number 1: what C code writes, and
    what children inherit, would go there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or _stream(0, "r")
    sys.stdout = sys.stdout or _stream(1, "w")
    sys.stderr = sys.stderr or _stream(2, "w")


def escape_what_output_lacks() -> None:
    """Escapes characters that standard output cannot encode, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_about_output(error: OSError) -> bool:
    """Returns whether a standard stream cannot be written to.

    Errors of files carry the file's name.
    """
    return error.filename is None and error.errno in _UNWRITABLE


def let_go_of_output() -> None:
    """Drops the buffer of standard output, which Python would try to write at exit."""
    fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, sys.stdout.fileno())
    os.close(fd)


def _stream(fd: int, mode: Literal["r", "w"]) -> TextIO:
    return open(fd, mode, encoding="utf-8", closefd=False)
