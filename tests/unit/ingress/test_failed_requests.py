"""Which requests have failed, in a log that a storm of them does not fill."""

from batching.model_spec import VersionKey
from ingress.failed_requests import MAX_LINES, PERIOD_S, FailedRequests
from tests.support import SimulatedClock

KEY = VersionKey("m", "1.0")


def test_failed_request_is_named_with_its_reason(caplog):
    # When
    failed = FailedRequests()
    failed.note("a", KEY, 504, "deadline_exceeded")
    failed.note("b", None, 503, "redis_unavailable")
    failed.note("c", KEY, 500, "")
    # Then
    assert caplog.messages == [
        "failed request=a status=504 reason=deadline_exceeded model=m version=1.0",
        "failed request=b status=503 reason=redis_unavailable model=unknown version=unknown",
        "failed request=c status=500 reason=handler model=m version=1.0",
    ]


def test_request_that_did_not_fail_is_not_named(caplog):
    for status in (200, 404, 499):
        FailedRequests().note("a", KEY, status, "")
    assert caplog.messages == []


def test_only_a_few_are_named_in_a_second_and_the_others_counted(caplog):
    # Given
    clock = SimulatedClock()
    failed = FailedRequests(clock)
    # When
    for number in range(MAX_LINES + 7):
        failed.note(f"first-{number}", KEY, 503, "queue_full")
    clock.now_s += PERIOD_S
    for number in range(2):
        failed.note(f"second-{number}", KEY, 503, "queue_full")
    # Then
    assert len(caplog.messages) == MAX_LINES + 2
    assert caplog.messages[MAX_LINES].endswith("version=1.0 left_out=7")
    assert caplog.messages[-1].endswith("version=1.0")
