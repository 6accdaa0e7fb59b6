"""Writes the lines of handlers' metrics into TorchServe's file before the replies are sent."""

import logging
import os
import sys
from logging.handlers import WatchedFileHandler
from pathlib import Path

from batching.metrics.lines import METRICS_VARIABLE, MODEL_METRICS_FILE
from batching.process.logs import LineFormatter
from batching.settings.settings import Settings

log = logging.getLogger(__name__)


class MetricsFile(WatchedFileHandler):
    """Appends to a file to which other workers append, too, and which the supervisor rolls.

    The console has the same lines, so one that the file does not take is only said once.
    """

    def __init__(self, settings: Settings) -> None:
        folder = Path(os.environ.get(METRICS_VARIABLE) or settings.log_location)
        super().__init__(folder / MODEL_METRICS_FILE, delay=True)
        self.setFormatter(LineFormatter({}))
        self._is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, if possible."""
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own)
        """Replaces the traceback for each line."""
        if not self._is_said:
            self._is_said = True
            log.warning("cannot write %s: %s", self.baseFilename, sys.exc_info()[1])
