"""Lines of a log say what they are about."""

import io
import logging
import time

import pytest

from batching.metrics import metric_line
from batching.process.logs import configure_logging
from tests.timing import assert_within


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
    assert log_lines(FIELDS, "workers.handling.worker", message) == [line]


def runaway():
    try:
        return runaway()
    except RecursionError as error:
        return error


def chained(count):
    error = ValueError("x")
    for _ in range(count):
        error, cause = ValueError("x"), error
        error.__context__ = cause
    return error


def noted():
    error = ValueError("x")
    error.__notes__ = ["note" * 1000] * 10_000
    return error


@pytest.mark.parametrize(
    "error",
    [runaway(), chained(10_000), noted(), ValueError("x" * 10**7)],
    ids=["recursion", "chain", "notes", "text"],
)
def test_what_a_model_raises_is_logged_within_bounds(log_lines, error):
    started_s = time.monotonic()
    lines = log_lines({}, "handler", "failed", exc_info=error)
    assert_within(time.monotonic() - started_s, 0.5)
    assert sum(map(len, lines)) < 10**5


def test_line_says_whose_it_is_above_what_else_belongs_to_it(log_lines):
    first, *rest = log_lines(FIELDS, "handler", "one\ntwo", exc_info=KeyError("x"))
    assert first == "one model=m version=1.0 worker=w-1"
    assert rest == ["    two", "KeyError: 'x'"]


FORGED = "2026-01-01T00:00:00.000Z INFO ACCESS_LOG forged"

CONTROLS = {
    "escape sequence": ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
    "cursor to the left": ("a\rb\x08\x7f", r"a\rb\x08\x7f"),
    "escape sequence in one character": ("\x9b2J", r"\x9b2J"),
    "other ends of lines": ("\v \f \x1c \x85 \u2028 \u2029", r"\x0b \x0c \x1c \x85 \u2028 \u2029"),
    "order of text": ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
    "NUL": ("a\0b", r"a\x00b"),
    "nothing": ("a\tb é \u3000 \U0001f600 \\x1b", "a\tb é \u3000 \U0001f600 \\x1b"),
}


@pytest.mark.parametrize(("text", "shown"), CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("name", ["handler", "MODEL_METRICS"])
def test_b19_controls_in_a_message_are_shown_and_not_obeyed(log_lines, name, text, shown):
    assert log_lines(None, name, f"said {text}") == [f"said {shown}"]


def test_b19_message_cannot_begin_a_line_of_the_log(log_lines):
    assert log_lines(FIELDS, "handler", f"said\r\n{FORGED}\n") == [
        r"said\r model=m version=1.0 worker=w-1",
        f"    {FORGED}",
        "    ",
    ]


def test_b19_metric_keeps_torchserves_form_and_is_one_line_whatever_its_labels_say(log_lines):
    line = metric_line("Calls", 1, {"Who": f"me\n{FORGED}"}, "box", "Count")
    [written] = log_lines(FIELDS, "MODEL_METRICS", line)
    assert written == line.replace("\n", r"\n")
    assert written.startswith(rf"Calls.Count:1.0|#Who:me\n{FORGED}|#hostname:box,")


def test_b19_exception_cannot_begin_a_line_of_the_log(log_lines):
    # Given what a handler raises for a client's text
    error = ValueError(f"no class \x1b[2J\n{FORGED}\nlast")
    # When
    lines = log_lines(None, "handler", "failed", exc_info=error)
    # Then
    assert lines == ["failed", r"ValueError: no class \x1b[2J", f"    {FORGED}", "last"]
