"""Shows what a handler raised, in the log and to its author.

The log has each traceback in full once, then in one line while the same one recurs. The author
sees the model's own files and lines.
"""

import linecache
import logging
import math
import os
import re
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb

from batching.process.logs import text_of
from batching.protocol import Claimed
from workers.machine import ts_folder

QUIET_S = 10.0
# A handler that fails at more places has its tracebacks written more often.
MAX_RAISED = 64
MAX_IDS = 8

MAX_TEXT_CHARS = 8000
MAX_LINE_CHARS = 1000
LOOKED_AT = 1000  # the innermost calls
MOST_CALLS = 7  # shown of the exception, the innermost ones
CAUSE_CALLS = (2, 2)  # shown of its causes

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_PACKAGES = Path(__file__).resolve().parents[2]
_OWN = tuple(f"{_PACKAGES / name}{os.sep}" for name in ("batching", "ferry", "ingress", "workers"))
_COMPATIBLE = f"{ts_folder()}{os.sep}"
_STANDARD = f"{sysconfig.get_paths()['stdlib']}{os.sep}"


class FailureLog:
    """Logs tracebacks, each in full once. Keeps no exception: it would hold a batch's tensors."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        shown_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Logs whole tracebacks, or only the lines of the model's own files in `shown_dir`."""
        self._log = log
        self._shown_dir = shown_dir
        self._clock = clock
        # By the exception's class, and the file and line that raised it.
        self._written_at_s: dict[tuple[str, str, int], float] = {}

    def write(self, message: str, error: Exception) -> None:
        """Logs the message, with the traceback unless the same one was logged in QUIET_S."""
        raised = (type(error).__name__, "?", 0)
        for frame, line in walk_tb(error.__traceback__):
            raised = (raised[0], frame.f_code.co_filename, line)
        now_s = self._clock()
        if now_s - self._written_at_s.get(raised, -math.inf) < QUIET_S:
            self._log.error("%s error=%s at=%s:%d", message, *raised)
            return
        if len(self._written_at_s) >= MAX_RAISED:
            self._written_at_s.clear()
        self._written_at_s[raised] = now_s
        if self._shown_dir is not None:
            self._log.error("%s\n%s", message, user_traceback(error, self._shown_dir))
        else:
            self._log.error("%s", message, exc_info=error)


def short_ids(items: Sequence[Claimed]) -> str:
    ids = [item.request_id for item in items[:MAX_IDS]]
    return ",".join([*ids, "..."] if len(items) > MAX_IDS else ids)


def sentence(error: BaseException, most_chars: int) -> str:
    return f"{type(error).__name__}: {text_of(error)}"[:most_chars]


# --- for the author


def user_traceback(error: BaseException, root: Path) -> str:
    """Returns the traceback's calls in files below `root` only, named relative to it.

    Leaves out calls of installed packages and of this server; if no other call is left, the
    innermost one of a library stays. Causes of the exception come first, as in Python.
    """
    # Handlers are imported from the folder as it was named, or with its links resolved.
    roots = tuple({f"{folder}{os.sep}" for folder in (root.absolute(), root.resolve())})

    def shown_name(path: str) -> str:
        """Returns a name without folders of this machine."""
        return _own_name(path, roots) or "/".join(Path(path).parts[-2:])

    part = shown = TracebackException(
        type(error), error, error.__traceback__, limit=-LOOKED_AT, lookup_lines=False, compact=True
    )
    for most_calls in (MOST_CALLS, *CAUSE_CALLS):
        calls = [call for call in part.stack if _own_name(call.filename, roots)][-most_calls:]
        if part is shown and not calls:
            calls = [call for call in part.stack if _is_of_library(call.filename)][-1:]
        part.stack = StackSummary.from_list(
            FrameSummary(
                shown_name(call.filename),
                call.lineno,
                call.name,
                line=linecache.getline(call.filename, call.lineno or 0),
            )
            for call in calls
        )
        if getattr(part, "filename", None):  # of a syntax error
            part.filename = shown_name(str(part.filename))
        part.exceptions = None  # of a group, whose tracebacks have other frames, too
        last, cause = part, part.__cause__ or part.__context__
        if cause is None:
            break
        part = cause
    last.__cause__ = last.__context__ = None
    text = "".join(shown.format()).rstrip("\n")
    for folder in roots:
        text = text.replace(folder, "")
    return re.sub(rf"(.{{{MAX_LINE_CHARS}}}).+", r"\1 …", text)[-MAX_TEXT_CHARS:]


def _own_name(path: str, roots: tuple[str, ...]) -> str:
    name = path.removeprefix(next(filter(path.startswith, roots), path))
    is_other = path.startswith((*_OWN, _COMPATIBLE, _STANDARD))
    return "" if is_other or _LIBRARY_FOLDERS.intersection(Path(name).parts) else name


def _is_of_library(path: str) -> bool:
    return path.startswith(_COMPATIBLE) or not path.startswith(("<", *_OWN))
