"""Shortens a traceback to what the author of a model can use: the model's own files and lines."""

import itertools
import linecache
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from batching.process.logs import DIRECT, DURING, TRACEBACK_HEAD, chain_of, own_lines, tail_of
from workers.machine.ts_folder import ts_folder

MAX_TEXT_CHARS = 4000
MAX_CALLS = 10_000  # that are looked at
MAX_LINE_CHARS = 300
# Of the exceptions that led to the last one; each with its innermost frames.
MAX_CAUSES = 2
CAUSE_LINES = 5

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_PACKAGES = Path(__file__).resolve().parents[2]
_OWN = tuple(f"{_PACKAGES / name}{os.sep}" for name in ("batching", "ferry", "ingress", "workers"))
_COMPATIBLE = f"{ts_folder()}{os.sep}"
_STANDARD = f"{sysconfig.get_paths()['stdlib']}{os.sep}"


def user_traceback(error: BaseException, root: Path, *, most_lines: int = 20) -> str:
    """Returns the last lines of the traceback, of files below `root` only, named relative to it.

    Frames of installed packages and of this server are left out. If none is left, the innermost
    frame of a library stays. Only the innermost MAX_CALLS calls are looked at: a runaway recursion
    has a million of them.

    Args:
        error: as caught.
        root: the model's folder.
        most_lines: above the exception's own text, which is cut to MAX_TEXT_CHARS.
    """
    files = _Files(root)
    lines = _frame_lines(error.__traceback__, files, most_lines, or_library=True)
    if lines:
        lines = [TRACEBACK_HEAD, *lines]
    for nearer, cause in itertools.pairwise(chain_of(error, 1 + MAX_CAUSES)):
        link = DIRECT if cause is nearer.__cause__ else DURING
        above = [*_frame_lines(cause.__traceback__, files, CAUSE_LINES), *_text_lines(cause, files)]
        lines = [*above, "", link, "", *lines]
    lines = lines[max(0, len(lines) - most_lines) :]
    return "\n".join([*(_cut(line, MAX_LINE_CHARS) for line in lines), *_text_lines(error, files)])


class _Files:
    """Knows which files are the model's, and what to call a file."""

    def __init__(self, root: Path) -> None:
        # Handlers are imported from the folder as it was named, or with its links resolved.
        self._roots = tuple({f"{folder}{os.sep}" for folder in (root.absolute(), root.resolve())})
        self._names: dict[str, str] = {}

    def own_name(self, path: str) -> str:
        """Returns the model's file relative to its folder; "" for any other file."""
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self._below_root(path)
        return name

    def any_name(self, path: str) -> str:
        """Returns a name without folders of this machine."""
        prefixes = [f"{folder}{os.sep}" for folder in sys.path if folder]
        fitting = [prefix for prefix in (*prefixes, _STANDARD) if path.startswith(prefix)]
        shortened = path[len(max(fitting, key=len)) :] if fitting else Path(path).name
        return self.own_name(path) or shortened

    def with_names(self, text: str) -> str:
        """Returns the text with the model's files named relative to its folder."""
        for root in self._roots:
            text = text.replace(root, "")
        return text

    def _below_root(self, path: str) -> str:
        if path.startswith((*_OWN, _COMPATIBLE, _STANDARD)):
            return ""
        for root in self._roots:
            if path.startswith(root):
                name = path[len(root) :]
                return "" if _LIBRARY_FOLDERS.intersection(Path(name).parts) else name
        return ""


@dataclass(slots=True)
class _Place:
    """A frame of a traceback, and how often it follows itself."""

    tb: TracebackType
    times: int = 1

    def is_at(self, tb: TracebackType) -> bool:
        return tb.tb_lasti == self.tb.tb_lasti and tb.tb_frame.f_code is self.tb.tb_frame.f_code


def _frame_lines(
    tb: TracebackType | None, files: _Files, most_lines: int, *, or_library: bool = False
) -> list[str]:
    places: deque[_Place] = deque(maxlen=max(1, (most_lines - 1) // 2))  # two lines each, and one
    library: TracebackType | None = None
    tb = tail_of(tb, MAX_CALLS)
    while tb is not None:
        path = tb.tb_frame.f_code.co_filename
        if files.own_name(path):
            if places and places[-1].is_at(tb):
                places[-1].times += 1
            else:
                places.append(_Place(tb))
        elif path.startswith(_COMPATIBLE) or not path.startswith(("<", *_OWN)):
            library = tb
        tb = tb.tb_next
    if or_library and not places and library is not None:
        places.append(_Place(library))
    return [line for place in places for line in _lines_of(place, files)]


def _lines_of(place: _Place, files: _Files) -> Iterator[str]:
    code, line_number = place.tb.tb_frame.f_code, place.tb.tb_lineno
    name = files.any_name(code.co_filename)
    yield f'  File "{name}", line {line_number}, in {code.co_name}'
    if source := linecache.getline(code.co_filename, line_number or 0).strip():
        yield f"    {source}"
    if place.times > 1:
        yield f"  [Previous line repeated {place.times - 1} more times]"


def _text_lines(error: BaseException, files: _Files) -> list[str]:
    file_name = error.filename if isinstance(error, SyntaxError) else None
    lines = own_lines(error, files.any_name(file_name) if isinstance(file_name, str) else None)
    return _cut(files.with_names(lines), MAX_TEXT_CHARS).split("\n")


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"
