"""What a handler raised, for the log and for its author.

The log has each traceback in full once, then in one line while the same one goes on. The author
sees the model's own files and lines.
"""

import linecache
import logging
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

from batching.process.logs import text_of
from batching.protocol import Claimed
from workers.machine import ts_folder

QUIET_S = 10.0
# A handler that fails at more places has its tracebacks written more often.
MAX_RAISED = 64
MAX_IDS = 8

MAX_TEXT_CHARS = 4000
MAX_LINE_CHARS = 300
MAX_CALLS = 1000  # the innermost, that are looked at
# Of the exceptions that led to the last one; each with its innermost frames.
MAX_CAUSES = 2
CAUSE_LINES = 5

_DIRECT = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"
_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_PACKAGES = Path(__file__).resolve().parents[2]
_OWN = tuple(f"{_PACKAGES / name}{os.sep}" for name in ("batching", "ferry", "ingress", "workers"))
_COMPATIBLE = f"{ts_folder()}{os.sep}"
_STANDARD = f"{sysconfig.get_paths()['stdlib']}{os.sep}"

_Raised = tuple[str, str, int]  # the exception's class, and the file and line that raised it


@dataclass(slots=True)
class _Written:
    at_s: float
    left_out: int = 0


class FailureLog:
    """Knows the logged tracebacks. Keeps no exception: it would hold a batch's tensors."""

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
        self._written: dict[_Raised, _Written] = {}

    def write(self, message: str, error: Exception) -> None:
        """Logs the message, and the traceback unless the same one was logged lately."""
        kind, file_name, line = raised = _innermost(error)
        now_s = self._clock()
        last = self._written.get(raised)
        if last is not None and now_s - last.at_s < QUIET_S:
            last.left_out += 1
            self._log.error("%s error=%s at=%s:%d", message, kind, file_name, line)
            return
        if len(self._written) >= MAX_RAISED:
            self._written.clear()
        self._written[raised] = _Written(now_s)
        if last is not None and last.left_out:
            message = f"{message} left_out={last.left_out}"
        if self._shown_dir is not None:
            self._log.error("%s\n%s", message, user_traceback(error, self._shown_dir))
        else:
            self._log.error("%s", message, exc_info=error)


def short_ids(items: Sequence[Claimed]) -> str:
    ids = [item.request_id for item in items[:MAX_IDS]]
    return ",".join([*ids, "..."] if len(items) > MAX_IDS else ids)


def sentence(error: BaseException, most_chars: int) -> str:
    return f"{type(error).__name__}: {text_of(error)}"[:most_chars]


def _innermost(error: Exception) -> _Raised:
    calls = error.__traceback__
    while calls is not None and calls.tb_next is not None:
        calls = calls.tb_next
    where = (calls.tb_frame.f_code.co_filename, calls.tb_lineno) if calls else ("?", 0)
    return type(error).__name__, *where


# --- for the author


def user_traceback(error: BaseException, root: Path, *, most_lines: int = 20) -> str:
    """Returns the last lines of the traceback, of files below `root` only, named relative to it.

    Frames of installed packages and of this server are left out. If none is left, the innermost
    frame of a library stays. The exception's own text is cut to MAX_TEXT_CHARS.
    """
    files = _Files(root)
    last = TracebackException(
        type(error), error, error.__traceback__, limit=-MAX_CALLS, lookup_lines=False, compact=True
    )
    own_calls = [frame for frame in last.stack if files.own_name(frame.filename)]
    lines = _call_lines(own_calls or _library_calls(last.stack), files, most_lines)
    if lines:
        lines = ["Traceback (most recent call last):", *lines]
    following = last
    for _ in range(MAX_CAUSES):
        led_to_it = following.__cause__ or following.__context__
        if led_to_it is None:
            break
        link = _DIRECT if following.__cause__ else _DURING
        calls = [frame for frame in led_to_it.stack if files.own_name(frame.filename)]
        above = [*_call_lines(calls, files, CAUSE_LINES), *_text_lines(led_to_it, files)]
        lines = [*above, "", link, "", *lines]
        following = led_to_it
    lines = [_cut(line, MAX_LINE_CHARS) for line in lines[max(0, len(lines) - most_lines) :]]
    return "\n".join([*lines, *_text_lines(last, files)])


class _Files:
    """Knows which files are the model's, and what to call a file."""

    def __init__(self, root: Path) -> None:
        # Handlers are imported from the folder as it was named, or with its links resolved.
        self._roots = tuple({f"{folder}{os.sep}" for folder in (root.absolute(), root.resolve())})

    def own_name(self, path: str) -> str:
        root = next(filter(path.startswith, self._roots), "")
        name = path[len(root) :]
        is_other = path.startswith((*_OWN, _COMPATIBLE, _STANDARD))
        if not root or is_other or _LIBRARY_FOLDERS.intersection(Path(name).parts):
            return ""
        return name

    def any_name(self, path: str) -> str:
        """Returns a name without folders of this machine."""
        prefixes = [f"{folder}{os.sep}" for folder in sys.path if folder]
        fitting = [prefix for prefix in (*prefixes, _STANDARD) if path.startswith(prefix)]
        shortened = path[len(max(fitting, key=len)) :] if fitting else Path(path).name
        return self.own_name(path) or shortened

    def with_names(self, text: str) -> str:
        for root in self._roots:
            text = text.replace(root, "")
        return text


def _library_calls(stack: StackSummary) -> list[FrameSummary]:
    for call in reversed(stack):
        if call.filename.startswith(_COMPATIBLE) or not call.filename.startswith(("<", *_OWN)):
            return [call]
    return []


def _call_lines(calls: Sequence[FrameSummary], files: _Files, most_lines: int) -> list[str]:
    named = []
    for call in calls[-max(1, (most_lines - 1) // 2) :]:  # two lines each, and one above
        source = linecache.getline(call.filename, call.lineno or 0)
        named.append(
            FrameSummary(files.any_name(call.filename), call.lineno, call.name, line=source)
        )
    return "".join(StackSummary.from_list(named).format()).splitlines()


def _text_lines(error: TracebackException, files: _Files) -> list[str]:
    if getattr(error, "filename", None):  # of a syntax error
        error.filename = files.any_name(error.filename)
    lines = "".join(error.format_exception_only()).rstrip("\n")
    return _cut(files.with_names(lines), MAX_TEXT_CHARS).split("\n")


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"
