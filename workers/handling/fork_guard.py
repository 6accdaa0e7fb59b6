"""Ends the processes that a handler forks, when they come back from it.

Such a process would go on as a second worker, with the first one's id, lease and connections.
"""

import logging
import mmap
import os
import sys

log = logging.getLogger(__name__)

_TEXT = (
    "a process that the handler forked came back from it, and was ended: end such processes by "
    "os._exit(), or start them by multiprocessing or subprocess"
)


class ForkGuard:
    """Knows the worker's process: the one that makes the guard.

    By its id, as `os.register_at_fork` tells nothing of the forks of native code.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Shared with the forks, so that the log tells of the first one only.
        self._is_told = mmap.mmap(-1, 1)

    def end_fork(self) -> None:
        """Ends any other process at once; belongs behind all code of the handler, in a `finally`.

        Ends it without its exit handlers, which are copies of the worker's.
        """
        if os.getpid() == self._pid:
            return
        error = sys.exception()
        try:
            if not self._is_told[0]:
                self._is_told[0] = True
                log.error(_TEXT, exc_info=None if isinstance(error, SystemExit) else error)
        finally:
            os._exit(_exit_code(error))


def _exit_code(error: BaseException | None) -> int:
    """Returns what the process would have ended with, for a handler that waits for it."""
    code = error.code if isinstance(error, SystemExit) else error
    return code & 0xFF if isinstance(code, int) else int(code is not None)
