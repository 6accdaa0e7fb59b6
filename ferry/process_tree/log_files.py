"""Sorts what the server's processes write into TorchServe's log files, and shows it as well.

One process writes them, so that they can be rolled; the others write into its pipes. Only the
workers write handlers' metrics themselves, so that the line is there when the answer is.
Source: TorchServe 0.12 log4j2.xml: names, 100 MB each, 5 old ones.
"""

import concurrent.futures
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Self

from batching.metrics import METRICS_VARIABLE, MODEL_METRICS_FILE
from batching.process.outputs import read_lines

MODEL_LOG, SERVER_LOG, ACCESS_LOG = "model_log.log", "ts_log.log", "access_log.log"
_METRIC_FILES = ("ts_metrics.log", MODEL_METRICS_FILE)
# Lines of these loggers have files of their own, whichever process wrote them.
_LOGGERS = (b"ACCESS_LOG", b"TS_METRICS", b"MODEL_METRICS")
_FILE_OF_LOGGER = dict(zip(_LOGGERS, (ACCESS_LOG, *_METRIC_FILES), strict=True))
_LOG_LINE = re.compile(rb"[0-9-]{10}T\S+Z [A-Z]+ (\S+) ")
_CLOSE_TIMEOUT_S = 2.0


class LogFiles:
    """Reads two pipes that child processes write into. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        show: Callable[[bytes], object],
        *,
        max_bytes: int = 100 * 2**20,
        old_files: int = 5,
    ) -> None:
        metrics_folder = Path(os.environ.get(METRICS_VARIABLE) or folder).absolute()
        self.variables = {METRICS_VARIABLE: str(metrics_folder)}
        self._show = show
        paths = [folder / name for name in (MODEL_LOG, SERVER_LOG, ACCESS_LOG)]
        paths += [metrics_folder / name for name in _METRIC_FILES]
        options = {"maxBytes": max_bytes, "backupCount": old_files, "delay": True}
        self._files = {path.name: _File(path, show, **options) for path in paths}
        self.stdout_fd = self.stderr_fd = -1
        self._ends: list[concurrent.futures.Future[None]] = []

    def __enter__(self) -> Self:
        for file in self._files.values():
            file.make()
        self.stdout_fd, self.stderr_fd = self._pipe(MODEL_LOG), self._pipe(SERVER_LOG)
        return self

    def __exit__(self, *_: object) -> None:
        """Flushes the files. The children must have ended."""
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)
        concurrent.futures.wait(self._ends, _CLOSE_TIMEOUT_S)
        for file in self._files.values():
            with contextlib.suppress(OSError):  # there is no room for the rest
                file.close()

    def say(self, line: str) -> None:
        """Logs a line of the supervisor's own."""
        with contextlib.suppress(OSError):
            os.write(self.stderr_fd, f"{line}\n".encode())

    def _pipe(self, default: str) -> int:
        read_fd, write_fd = os.pipe()
        file_name = default

        def take(line: bytes) -> None:
            nonlocal file_name
            # A traceback's lines go where the line above them went.
            if match := _LOG_LINE.match(line):
                file_name = _FILE_OF_LOGGER.get(match[1], default)
            elif not line.startswith(b" "):
                file_name = default
            file = self._files[file_name]
            if file_name == MODEL_METRICS_FILE:
                file.roll_if_full()
            else:
                file.emit(logging.makeLogRecord({"msg": line.decode(errors="replace")}))
            self._show(line)

        self._ends.append(read_lines(os.fdopen(read_fd, "rb"), take))
        return write_fd


class _File(RotatingFileHandler):
    """Writes one log file, and complains once on the console when it cannot."""

    def __init__(self, path: Path, show: Callable[[bytes], object], **options: Any) -> None:
        super().__init__(path, **options)
        self._show = show
        self._has_failed = False

    def make(self) -> None:
        """Makes the file before the first line, if possible: other programs watch for it."""
        path = Path(self.baseFilename)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            self._complain(error)

    def roll_if_full(self) -> None:
        """Begins a new file, if other processes have filled this one."""
        with contextlib.suppress(OSError):
            if Path(self.baseFilename).stat().st_size >= self.maxBytes:
                self.doRollover()
                self.make()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own)
        """Complains once, where logging would print a traceback for each line."""
        self._complain(sys.exc_info()[1])

    def _complain(self, error: BaseException | None) -> None:
        if not self._has_failed:
            self._show(f"cannot write {self.baseFilename}: {error}".encode())
        self._has_failed = True
