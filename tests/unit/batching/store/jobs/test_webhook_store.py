"""Events that receivers are to hear of: written with the status, and told until that succeeds."""

import pytest

from batching.protocol import Reply
from batching.store import keys
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Receiver
from batching.store.jobs.job_store import WebhookOutcome, WebhookStore
from batching.store.node_queue import ReclaimMode
from tests.support import KEY, Blocking, items_of, make_reply

RECEIVER = Receiver("https://receiver.example/", "http://server")
LEASE_MS = 60_000


@pytest.fixture
def webhooks(harness):
    return Blocking(harness._runner, WebhookStore(harness._async_client))


def run(harness, *replies):
    worker = harness.worker()
    return worker.reply(items_of(worker.claim(8, 0.0)), list(replies))


def due(webhooks):
    return [(event.job_id, event.name, event.tries) for event in webhooks.claim(10, LEASE_MS)]


def make_due(harness):
    """The time for which others leave the events alone is over."""
    name = harness.keys.webhooks
    if events := harness.client.zrange(name, 0, -1):
        harness.client.zadd(name, dict.fromkeys(events, 0))


def test_end_is_told_once(harness, webhooks):
    # Given
    assert harness.submit_job("a", receiver=RECEIVER) is SubmitCode.QUEUED
    assert due(webhooks) == []
    # When
    run(harness, make_reply("A"))
    # Then it is due in the step that ended the job, for one sender
    [event] = webhooks.claim(10, LEASE_MS)
    assert (event.job_id, event.name, event.key) == ("a", "succeeded", KEY)
    assert due(webhooks) == []
    # And when it is told
    webhooks.end(event, WebhookOutcome.DELIVERED)
    # Then the job says so, and nothing is left
    job = harness.jobs().find("a")
    assert (job.webhook.receiver, job.webhook.status, job.webhook.tries) == (
        RECEIVER,
        "delivered",
        1,
    )
    make_due(harness)
    assert due(webhooks) == []
    assert not harness.client.exists(harness.keys.webhooks)


def test_sender_that_died_leaves_its_event_to_another(harness, webhooks):
    harness.submit_job("a", receiver=RECEIVER)
    run(harness, make_reply("A"))
    [first] = webhooks.claim(10, LEASE_MS)
    make_due(harness)
    [second] = webhooks.claim(10, LEASE_MS)
    assert second == first
    webhooks.end(second, WebhookOutcome.GONE)
    webhooks.end(first, WebhookOutcome.PENDING, 5000, "status 500")  # too late
    assert harness.jobs().find("a").webhook.status == "gone"
    make_due(harness)
    assert due(webhooks) == []


def test_failure_is_due_again(harness, webhooks):
    harness.submit_job("a", receiver=RECEIVER)
    run(harness, Reply(503, b"no", error_type="X", reason="y"))
    [event] = webhooks.claim(10, LEASE_MS)
    assert event.name == "failed"
    webhooks.end(event, WebhookOutcome.PENDING, 5000, "status 500")
    webhook = harness.jobs().find("a").webhook
    assert (webhook.status, webhook.tries, webhook.last_error) == ("pending", 1, "status 500")
    assert due(webhooks) == []
    make_due(harness)
    assert due(webhooks) == [("a", "failed", 1)]
    # And one for which there was no room counts as no try
    webhooks.end(event, WebhookOutcome.BUSY, 0)
    assert due(webhooks) == [("a", "failed", 1)]


def test_start_is_told_to_those_who_ask(harness, webhooks):
    both = Receiver("https://receiver.example/", "http://server", is_start_told=True)
    harness.submit_job("a", receiver=both)
    harness.submit_job("b", receiver=RECEIVER)
    worker = harness.worker()
    claimed = worker.claim(8, 0.0)
    assert due(webhooks) == [("a", "started", 0)]
    worker.reply(items_of(claimed), [make_reply("A"), make_reply("B")])
    assert sorted(due(webhooks)) == [("a", "succeeded", 0), ("b", "succeeded", 0)]


def test_every_end_is_told_and_of_each_attempt(harness, webhooks):
    # When
    for job_id in ("cancelled", "left", "late"):
        harness.submit_job(job_id, receiver=RECEIVER)
    harness.jobs().cancel("cancelled")
    harness.age_request("late", 120_000)
    harness.worker().claim(8, 0.0)
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)
    harness.node().refuse_waiting(KEY, "unregistered")
    # Then
    assert sorted(due(webhooks)) == [
        ("cancelled", "cancelled", 0),
        ("late", "expired", 0),
        ("left", "failed", 0),
    ]
    # And when one is tried again, its end is news again
    assert harness.jobs().retry(harness.jobs().find("cancelled")) is SubmitCode.QUEUED
    run(harness, make_reply("A"))
    assert due(webhooks) == [("cancelled", "succeeded", 0)]


def test_job_that_has_gone_takes_its_events_along(harness, webhooks):
    harness.submit_job("a", receiver=RECEIVER)
    run(harness, make_reply("A"))
    harness.client.delete(harness.keys.job_prefix + "a")
    assert due(webhooks) == []
    assert not harness.client.exists(harness.keys.webhooks)


def test_nothing_is_kept_for_ever_and_nothing_for_jobs_without(harness, webhooks):
    harness.submit_job("a")
    run(harness, make_reply("A"))
    assert not harness.client.exists(harness.keys.webhooks, keys.WEBHOOK_VERSIONS)
    harness.submit_job("b", receiver=RECEIVER)
    run(harness, make_reply("B"))
    for name in (harness.keys.webhooks, keys.WEBHOOK_VERSIONS):
        assert 0 < harness.client.pttl(name) <= 300_000
