"""What follows a try to tell a receiver."""

import datetime
import email.utils

import pytest

from batching.store.jobs.webhook_store import WebhookOutcome
from workers.webhooks.delivery import Heard
from workers.webhooks.schedule import JITTER, WAITS_S, after, words_of


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_success_ends_it(status):
    assert after(Heard(status), 3) == (WebhookOutcome.DELIVERED, 0.0)
    assert words_of(Heard(status)) == ""


def test_gone_ends_it():
    assert after(Heard(410), 0) == (WebhookOutcome.GONE, 0.0)


@pytest.mark.parametrize("heard", [Heard(301), Heard(404), Heard(500), Heard(0, error="refused")])
def test_all_else_is_tried_again_by_the_schedule(heard):
    assert WAITS_S == (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
    for tries, wait_s in enumerate(WAITS_S):
        outcome, again_s = after(heard, tries)
        assert outcome is WebhookOutcome.PENDING
        assert wait_s * (1 - JITTER) <= again_s <= wait_s * (1 + JITTER)
    assert after(heard, len(WAITS_S)) == (WebhookOutcome.FAILED, 0.0)
    assert words_of(heard)


def test_retry_after_is_heeded_within_reason():
    assert after(Heard(503, "120"), 0)[1] == 120
    assert after(Heard(503, "999999999"), 0)[1] == WAITS_S[-1]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    assert 90 < after(Heard(503, email.utils.format_datetime(later, usegmt=True)), 0)[1] <= 100
    for nonsense in ("", "-5", "soon", "\u0665", "Thu, 99 Foo 2026"):
        assert after(Heard(503, nonsense), 0)[1] < 6
