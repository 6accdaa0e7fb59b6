"""Shows what a handler raised, in the log and to its author.

The log has each traceback in full once, then in one line while the same one recurs. The author
sees the model's own files and lines.
"""

import linecache
import logging
import math
import os
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

MAX_TEXT_CHARS = 4000
MAX_LINE_CHARS = 300
LOOKED_AT = 1000  # the innermost calls
# Calls shown of the last exception, and of its causes, the innermost ones.
MOST_CALLS, CAUSE_CALLS, MAX_CAUSES = 7, 2, 2

_DIRECT = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"
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
    files = _Files(root)
    shown = TracebackException(
        type(error), error, error.__traceback__, limit=-LOOKED_AT, lookup_lines=False, compact=True
    )
    calls = files.own_calls(shown.stack) or _library_calls(shown.stack)
    traceback = _formatted(shown, calls[-MOST_CALLS:], files)
    for _ in range(MAX_CAUSES):
        cause = shown.__cause__ or shown.__context__
        if cause is None:
            break
        link = _DIRECT if shown.__cause__ else _DURING
        calls = files.own_calls(cause.stack)[-CAUSE_CALLS:]
        traceback = f"{_formatted(cause, calls, files)}\n\n{link}\n\n{traceback}"
        shown = cause
    return traceback


class _Files:
    """Knows which files are the model's, and what to call a file."""

    def __init__(self, root: Path) -> None:
        # Handlers are imported from the folder as it was named, or with its links resolved.
        self._roots = tuple({f"{folder}{os.sep}" for folder in (root.absolute(), root.resolve())})

    def own_calls(self, stack: StackSummary) -> list[FrameSummary]:
        return [call for call in stack if self._own_name(call.filename)]

    def name(self, path: str) -> str:
        """Returns a name without folders of this machine."""
        return self._own_name(path) or "/".join(Path(path).parts[-2:])

    def with_names(self, text: str) -> str:
        for root in self._roots:
            text = text.replace(root, "")
        return text

    def _own_name(self, path: str) -> str:
        root = next(filter(path.startswith, self._roots), "")
        name = path[len(root) :]
        is_other = path.startswith((*_OWN, _COMPATIBLE, _STANDARD))
        if not root or is_other or _LIBRARY_FOLDERS.intersection(Path(name).parts):
            return ""
        return name


def _library_calls(stack: StackSummary) -> list[FrameSummary]:
    for call in reversed(stack):
        if call.filename.startswith(_COMPATIBLE) or not call.filename.startswith(("<", *_OWN)):
            return [call]
    return []


def _formatted(error: TracebackException, calls: Sequence[FrameSummary], files: _Files) -> str:
    named = []
    for call in calls:
        source = _cut(linecache.getline(call.filename, call.lineno or 0), MAX_LINE_CHARS)
        named.append(FrameSummary(files.name(call.filename), call.lineno, call.name, line=source))
    head = ["Traceback (most recent call last):\n"] if calls else []
    if getattr(error, "filename", None):  # of a syntax error
        error.filename = files.name(error.filename)
    text = files.with_names("".join(error.format_exception_only()).rstrip("\n"))
    return "".join([*head, *StackSummary.from_list(named).format(), _cut(text, MAX_TEXT_CHARS)])


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"
