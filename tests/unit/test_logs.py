"""Lines of a log say what they are about."""

import io
import logging

import pytest

from batching.logs import configure_logging


@pytest.fixture
def log_lines():
    """Writes to a log that is configured with these fields; what was written."""
    root = logging.getLogger()
    handlers, level, stream = root.handlers, root.level, io.StringIO()
    root.handlers = []

    def write(fields, name, message, **options):
        configure_logging("info", stream, fields)
        logging.getLogger(name).error(message, **options)
        return [line.partition(f" {name} ")[2] or line for line in stream.getvalue().splitlines()]

    yield write
    root.handlers = handlers
    root.setLevel(level)


FIELDS = {"model": "m", "version": "1.0", "worker": "w-1"}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("claim failed", "claim failed model=m version=1.0 worker=w-1"),
        ("handler failed model=m batch=2", "handler failed model=m batch=2 version=1.0 worker=w-1"),
    ],
)
def test_line_says_whose_it_is_once(log_lines, message, line):
    assert log_lines(FIELDS, "workers.worker", message) == [line]


def test_line_says_whose_it_is_above_what_else_belongs_to_it(log_lines):
    # Given
    error = KeyError("x")
    # When
    first, *rest = log_lines(FIELDS, "handler", "one\ntwo", exc_info=error)
    # Then
    assert first == "one model=m version=1.0 worker=w-1"
    assert rest == ["two", "KeyError: 'x'"]


def test_metrics_lines_keep_torchserves_form(log_lines):
    line = "HandlerTime.Milliseconds:1.0|#ModelName:m,Level:Model|#type:GAUGE"
    assert log_lines(FIELDS, "MODEL_METRICS", line) == [line]


def test_process_without_fields_adds_nothing(log_lines):
    assert log_lines(None, "ingress", "stopped") == ["stopped"]
