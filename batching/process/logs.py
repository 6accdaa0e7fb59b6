"""How every process writes its log."""

import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from batching.metrics.lines import metric_log, model_metric_log

LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"

# Lines of these have TorchServe's form, to the end.
_METRIC_LOGS = frozenset({metric_log.name, model_metric_log.name})

# What moves a terminal's cursor, ends a line for some reader, or turns the order of text around.
# Messages hold text of clients and archives. Tabs do none of this, and handlers write tables.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# The log files' sorter takes a line that begins like this for a new event, and others for part of
# one.
_EVENT = re.compile(r"^(?=[0-9-]{10}T)", re.MULTILINE)
_INDENT = "    "


class LineFormatter(logging.Formatter):
    """One line per event, ending with the fields of this process (`model=`); times in UTC."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._fields = fields

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Returns the line, and those of the process' fields that it does not have itself."""
        text = super().formatMessage(record)
        if record.name in _METRIC_LOGS:
            return _escaped(text).replace("\n", "\\n")
        line, end, rest = _escaped(text).replace("\n", f"\n{_INDENT}").partition("\n")
        for name, value in self._fields.items():
            if f" {name}=" not in line:
                line += f" {name}={value}"
        return line + end + rest

    def formatException(self, ei: Any) -> str:  # noqa: N802  (logging's name)
        """Returns the traceback.

        Nothing in it, which may be a client's text, looks like another event.
        """
        return _EVENT.sub(_INDENT, _escaped(super().formatException(ei)))


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


def _escaped(text: str) -> str:
    """The text with each control character but tabs and ends of lines as Python writes it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
