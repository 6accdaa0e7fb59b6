"""What a handler raised is in the log: once in full, and each time in a line."""

import logging

from tests.support import SimulatedClock
from workers.handling.runner import QUIET_S, FailureLog


def raised(kind):
    try:
        raise kind("x")
    except kind as error:
        return error


def written(caplog):
    """(message, whether the traceback was written) of each line."""
    return [(record.getMessage(), record.exc_info is not None) for record in caplog.records]


def test_same_traceback_is_written_in_one_line_for_a_while(caplog):
    # Given
    clock = SimulatedClock()
    failures = FailureLog(logging.getLogger("here"), clock=clock)
    # When
    for words in ("first", "second", "third"):
        failures.write(words, raised(KeyError))
    clock.now_s += QUIET_S
    for words in ("fourth", "fifth"):
        failures.write(words, raised(KeyError))
    failures.write("another", raised(ValueError))
    # Then
    (first, second, third, fourth, fifth, another) = written(caplog)
    assert first == ("first", True)
    assert second[0].startswith(f"second error=KeyError at={__file__}:")
    assert third[0].startswith("third ")
    assert (second[1], third[1], fifth[1]) == (False, False, False)
    assert fourth == ("fourth", True)
    assert another == ("another", True)
