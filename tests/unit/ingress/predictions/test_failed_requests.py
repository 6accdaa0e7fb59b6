"""Which requests have failed, in a log that a storm of them does not fill."""

from ingress.predictions.prediction_service import MAX_LINES, FailedRequests
from tests.support import eventually_async

ASKED = {"model": "m", "version": "1.0"}


async def test_failed_request_is_named_with_its_reason(caplog):
    # When
    failed = FailedRequests()
    failed.note("a", 504, "deadline_exceeded", ASKED)
    failed.note("b", 500, "", {"method": "PUT", "path": "/models/m%0A"})
    # Then
    assert caplog.messages == [
        "failed request=a status=504 reason=deadline_exceeded model=m version=1.0",
        "failed request=b status=500 reason=handler method=PUT path=/models/m%0A",
    ]


async def test_only_a_few_are_named_in_a_second_and_the_others_counted(caplog):
    failed = FailedRequests(period_s=0.05)
    # When
    for number in range(MAX_LINES + 7):
        failed.note(f"first-{number}", 503, "queue_full", ASKED)
    # Then the count comes without a further failure
    await eventually_async(lambda: caplog.messages[-1] == "failed requests left_out=7")
    # When
    failed.note("second", 503, "queue_full", ASKED)
    # Then
    assert len(caplog.messages) == MAX_LINES + 2
    assert caplog.messages[-1].startswith("failed request=second ")
