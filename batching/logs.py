"""How every process writes its log."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from batching.metric_lines import metric_log, model_metric_log

LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"

# Lines of these have TorchServe's form, to the end.
_METRIC_LOGS = frozenset({metric_log.name, model_metric_log.name})


class LineFormatter(logging.Formatter):
    """One line per event, which ends with what is true of the whole process; times in UTC."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._fields = fields

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """The line, and what the process' fields add to what it says itself."""
        text = super().formatMessage(record)
        if record.name in _METRIC_LOGS:
            return text
        line, end, rest = text.partition("\n")
        for name, value in self._fields.items():
            if f" {name}=" not in line:
                line += f" {name}={value}"
        return line + end + rest


def configure_logging(
    level: str, stream: TextIO | None = None, fields: Mapping[str, str] | None = None
) -> None:
    """Every logger writes one line per event to standard error, or `stream`; times in UTC.

    Args:
        level: of the least important lines that are written.
        stream: instead of standard error.
        fields: end each line that does not say them itself.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(fields or {}))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
