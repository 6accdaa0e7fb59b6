"""Which requests have failed, in a log that a storm of them does not fill."""

import asyncio

import pytest

from batching.models.spec import VersionKey
from ingress.predictions import failed_requests
from ingress.predictions.failed_requests import MAX_LINES, FailedRequests
from tests.support import eventually_async

KEY = VersionKey("m", "1.0")


@pytest.fixture(autouse=True)
def short_period(monkeypatch):
    monkeypatch.setattr(failed_requests, "PERIOD_S", 0.05)


def test_failed_request_is_named_with_its_reason(caplog):
    # When
    async def fail():
        failed = FailedRequests()
        failed.note("a", KEY, 504, "deadline_exceeded")
        failed.note("b", None, 503, "redis_unavailable")
        failed.note("c", KEY, 500, "")
        failed.note_other("d", ("PUT", "/models/m\n"), 503, "unavailable")

    asyncio.run(fail())
    # Then
    assert caplog.messages == [
        "failed request=a status=504 reason=deadline_exceeded model=m version=1.0",
        "failed request=b status=503 reason=redis_unavailable model=unknown version=unknown",
        "failed request=c status=500 reason=handler model=m version=1.0",
        "failed request=d status=503 reason=unavailable method=PUT path=/models/m%0A",
    ]


def test_only_a_few_are_named_in_a_second_and_the_others_counted(caplog):
    async def fail():
        failed = FailedRequests()
        # When
        for number in range(MAX_LINES + 7):
            failed.note(f"first-{number}", KEY, 503, "queue_full")
        # Then nobody has to fail for the others to be told of
        await eventually_async(lambda: caplog.messages[-1] == "failed requests left_out=7")
        # When
        failed.note("second", KEY, 503, "queue_full")

    asyncio.run(fail())
    # Then
    assert len(caplog.messages) == MAX_LINES + 2
    assert caplog.messages[-1].startswith("failed request=second ")
