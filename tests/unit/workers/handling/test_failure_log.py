"""What a handler raised is in the log: once in full, and each time in a line."""

import logging

import pytest

from tests.support import SimulatedClock
from tests.unit.workers.handling.batches import Handler, batch, body, runner
from workers.handling.failure_log import QUIET_S, FailureLog


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def failures(clock):
    return FailureLog(logging.getLogger("here"), clock=clock)


def raised(kind):
    try:
        raise kind("x")
    except kind as error:
        return error


def written(caplog):
    """(message, whether the traceback was written) of each line."""
    return [(record.getMessage(), record.exc_info is not None) for record in caplog.records]


def test_same_traceback_is_written_in_one_line_for_a_while(failures, clock, caplog):
    # When
    for words in ("first", "second", "third"):
        failures.write(words, raised(KeyError))
    clock.now_s += QUIET_S
    for words in ("fourth", "fifth"):
        failures.write(words, raised(KeyError))
    # Then
    (first, second, third, fourth, fifth) = written(caplog)
    assert first == ("first", True)
    assert second[0].startswith(f"second error=KeyError at={__file__}:")
    assert third[0].startswith("third ")
    assert (second[1], third[1], fifth[1]) == (False, False, False)
    assert fourth == ("fourth left_out=2", True)


def test_other_exception_of_the_same_place_is_written_in_full(failures, caplog):
    failures.write("first", raised(KeyError))
    failures.write("second", raised(ValueError))
    assert [is_full for _, is_full in written(caplog)] == [True, True]


def test_failure_names_the_first_requests_of_its_batch(caplog):
    # Given
    def fail(rows, context):
        raise KeyError

    # When
    runner(Handler(fail)).run(batch(*[body()] * 10))
    # Then
    together, first_alone, *_ = written(caplog)
    ids = ",".join(f"id-{number}" for number in range(8))
    assert together == (f"handler failed model=echo batch=10 requests={ids},...", True)
    assert first_alone[0].startswith("handler failed model=echo batch=1 requests=id-0 error=")
    assert first_alone[1] is False


def test_wrong_number_of_answers_names_the_requests(caplog):
    runner(Handler(lambda rows, context: [1, 2, 3])).run(batch(body()))
    assert caplog.messages == [
        "handler returned list of 3 for model=echo batch=1 requests=id-0:"
        " a list of 1, one answer for each request, was wanted",
    ]


def test_answer_that_cannot_be_sent_names_its_request(caplog):
    runner(Handler(lambda rows, context: ["a", object()])).run(batch(body(), body()))
    [message] = caplog.messages
    assert message == "answer refused model=echo batch=1 requests=id-1 row=1"
