"""Configures the log that every process writes."""

import itertools
import logging
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from batching.metrics import metric_log, model_metric_log
from batching.process.outputs import free_outputs

LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"

# Lines of these logs have TorchServe's form, without our fields at the end.
_METRIC_LOGS = frozenset({metric_log.name, model_metric_log.name})

# Characters that move a terminal's cursor, end a line for some reader, or reverse the text's order.
# Messages hold text of clients and archives. Tabs are harmless, and handlers write tables.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# To the sorter of log files, a line that begins like this is a new event.
_EVENT = re.compile(r"^(?=[0-9-]{10}T)", re.MULTILINE)
_INDENT = "    "
# Of what models raise: a runaway recursion has a million calls, and a chain or a group may have as
# many exceptions.
_MOST_CALLS = 200
_MOST_ERRORS = 5
_MOST_IN_GROUP = 3
_MOST_LINES = 200
_MOST_CHARS = 64 * 1024

# The last one changes with the first.
_LINKS = ("__cause__", "__context__", "__suppress_context__")

DIRECT = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
TRACEBACK_HEAD = "Traceback (most recent call last):"


class LineFormatter(logging.Formatter):
    """Writes one line per event, ending with the fields of this process (`model=`)."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._fields = fields

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Appends the fields of the process that the line does not have itself."""
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
        text = "NoneType: None" if ei[1] is None else _error_text(ei[1], _MOST_ERRORS)
        return _EVENT.sub(_INDENT, _escaped(text))


def configure_logging(
    level: str, stream: TextIO | None = None, fields: Mapping[str, str] | None = None
) -> None:
    """Makes every logger write one line per event, times in UTC.

    Args:
        level: of the least events that are written.
        stream: where to; without, to standard error, for which the process never waits from now on.
        fields: each line ends with those that it does not have itself.
    """
    if stream is None:
        free_outputs()
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(fields or {}))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def tail_of(tb: TracebackType | None, most: int) -> TracebackType | None:
    """Returns the innermost calls of a traceback, as fast as it can be walked."""
    ahead = tb
    for _ in range(most):
        if ahead is None:
            return tb
        ahead = ahead.tb_next
    while ahead is not None and tb is not None:
        ahead, tb = ahead.tb_next, tb.tb_next
    return tb


def chain_of(error: BaseException, most: int) -> list[BaseException]:
    """Returns the exception and the nearest of those that led to it."""
    chain = [error]
    while len(chain) < most:
        last = chain[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or any(cause is known for known in chain):
            break
        chain.append(cause)
    return chain


def text_of(error: BaseException) -> str:
    """Returns `str(error)`, which is the code of whoever raises it, and may fail itself."""
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


def own_lines(error: BaseException, file_name: str | None = None) -> str:
    """Returns what stands below a traceback, of this exception alone.

    Args:
        error: as caught.
        file_name: what to call the file of a syntax error; by default as it is called.
    """
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}: {text_of(error)}"[:_MOST_CHARS]
    # TracebackException would format all that it can reach.
    linked = {name: getattr(error, name) for name in _LINKS}
    _link(error, dict.fromkeys(_LINKS[:2]))
    try:
        made = traceback.TracebackException(type(error), error, None, lookup_lines=False)
        if file_name is not None:
            made.filename = file_name
        lines = itertools.islice(made.format_exception_only(), _MOST_LINES)
        return "".join(line[:_MOST_CHARS] for line in lines)[:_MOST_CHARS].rstrip("\n")
    finally:
        _link(error, linked)


def _link(error: BaseException, linked: Mapping[str, Any]) -> None:
    for name, value in linked.items():
        # Not by the exception's own way, which may refuse: a frozen dataclass does.
        BaseException.__setattr__(error, name, value)


def _error_text(error: BaseException, most_errors: int) -> str:
    parts: list[str] = []
    chain = chain_of(error, most_errors)
    for nearer, one in zip([None, *chain], chain, strict=False):
        if nearer is not None:
            parts.insert(0, f"\n{DIRECT if one is nearer.__cause__ else DURING}\n")
        lines = [own_lines(one)]
        if one.__traceback__ is not None:
            calls = traceback.extract_tb(tail_of(one.__traceback__, _MOST_CALLS)).format()
            lines = [TRACEBACK_HEAD, "".join(calls).rstrip("\n"), *lines]
        if isinstance(one, BaseExceptionGroup) and (most_inner := most_errors // _MOST_IN_GROUP):
            for inner in one.exceptions[:_MOST_IN_GROUP]:
                lines.append(textwrap.indent(_error_text(inner, most_inner), "  | "))
        parts[:0] = lines
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Escapes each control character but tabs and ends of lines, as Python writes it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
