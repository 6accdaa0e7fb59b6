"""Configures the log that every process writes."""

import logging
import re
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from batching.metrics import metric_log, model_metric_log
from batching.process.outputs import free_outputs

LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"

# Lines of these logs have TorchServe's form, without our fields at the end.
_METRIC_LOGS = frozenset({metric_log.name, model_metric_log.name})

# Characters that move a terminal's cursor, end a line for some reader, or reverse the text's order.
# Messages hold text of clients and archives. Tabs are harmless, and handlers write tables.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# The sorter of log files takes a line that begins like this for a new event.
_EVENT = re.compile(r"^(?=[0-9-]{10}T)", re.MULTILINE)
_INDENT = "    "
# Limits for what models raise: a runaway recursion has a million calls.
_MOST_CALLS = 200
_MOST_CHARS = 64 * 1024
_MOST_CHARS_EACH = 8 * 1024


class LineFormatter(logging.Formatter):
    """Writes one line per event, ending with the fields of this process (`model=`)."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._fields = fields

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Appends the fields of the process that the line lacks."""
        text = super().formatMessage(record)
        if record.name in _METRIC_LOGS:
            return _escaped(text).replace("\n", "\\n")
        line, end, rest = _escaped(text).replace("\n", f"\n{_INDENT}").partition("\n")
        for name, value in self._fields.items():
            if f" {name}=" not in line:
                line += f" {name}={value}"
        return line + end + rest

    def formatException(self, ei: Any) -> str:  # noqa: N802  (logging's name)
        """Indents lines that look like an event: they may be a client's."""
        lines = traceback.format_exception(ei[1], limit=-_MOST_CALLS)
        text = "".join(line[:_MOST_CHARS_EACH] for line in lines)[-_MOST_CHARS:].rstrip("\n")
        return _EVENT.sub(_INDENT, _escaped(text))


def configure_logging(
    level: str, stream: TextIO | None = None, fields: Mapping[str, str] | None = None
) -> None:
    """Makes every logger write one line per event, times in UTC, which ends with these fields.

    By default to standard error, for which the process never waits from now on.
    """
    if stream is None:
        free_outputs()
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(fields or {}))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def text_of(error: BaseException) -> str:
    """Returns `str(error)`, whose code may be a model's and may fail itself."""
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


def _escaped(text: str) -> str:
    """Escapes control characters as Python does, except tabs and line ends."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
