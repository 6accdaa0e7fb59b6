"""Events that are due are told, and neither a slow receiver nor a bad event stops the others."""

import asyncio
import base64
import gc
import json
from collections import Counter

import psutil
import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from batching.protocol import Reply
from batching.settings.settings import Settings
from batching.store.background_tasks import end_tasks
from batching.store.jobs.job_records import Receiver
from batching.store.jobs.job_store import JobStore, WebhookOutcome, WebhookStore
from batching.store.redis_errors import OutageLog
from tests.support import items_of, make_reply
from workers.node import webhook_sender as sending
from workers.node.webhook_sender import (
    JITTER,
    MOST_PER_HOST,
    WAITS_S,
    ReceiverAnswer,
    WebhookSender,
)

KEYS = [b"k" * 32, b"l" * 32]


class Receivers:
    """Stands for the network: gives `answer`, but nothing for silent hosts until the end."""

    def __init__(self, *silent):
        self.told = []
        self.now, self.most = Counter(), Counter()
        self.answer = ReceiverAnswer(200)
        self._silent = set(silent)
        self.end = asyncio.Event()

    async def post(self, url, headers, body):
        host = url.split("/")[2]
        self.now[host] += 1
        self.most[host] = max(self.most[host], self.now[host])
        try:
            if host in self._silent:
                await self.end.wait()
            self.told.append((host, json.loads(body)))
            self.last = headers, body
            return self.answer
        finally:
            self.now[host] -= 1


@pytest.fixture
def send(harness):
    """Runs a sender until the predicate is true, or for as long as it takes to fail."""

    def send(receivers, is_over, timeout_s=20):
        async def run():
            jobs, webhooks = (
                JobStore(harness._async_client, 10),
                WebhookStore(harness._async_client),
            )
            outage = OutageLog(sending.log)
            sender = WebhookSender(webhooks, jobs, receivers, KEYS, outage, poll_s=0.01)
            running = asyncio.create_task(sender.run())
            try:
                async with asyncio.timeout(timeout_s):
                    while not is_over():
                        await asyncio.sleep(0.01)
            finally:
                await end_tasks([running])

        harness._runner.run(run())

    return send


def finish(harness, host, count, answer=None):
    """Has so many jobs end whose receiver is this host."""
    for number in range(count):
        receiver = Receiver(f"https://{host}/", "http://server", is_result_told=True)
        harness.submit_job(f"{host[0]}{number}", receiver=receiver)
    worker = harness.worker()
    worker.reply(items_of(worker.claim(count, 0.0)), [answer or make_reply("A")] * count)


def test_receiver_is_told_of_all_its_jobs(harness, send):
    # Given more than are told at once
    finish(harness, "fast", 120)
    receivers = Receivers()
    # When
    send(receivers, lambda: len(receivers.told) == 120)
    # Then each once
    ids = {message["data"]["id"] for _, message in receivers.told}
    assert len(ids) == 120
    assert receivers.most["fast"] <= MOST_PER_HOST


def test_receiver_that_hangs_leaves_room_for_others(harness, send):
    # Given
    finish(harness, "hangs", 100)
    finish(harness, "other", 20)
    receivers = Receivers("hangs")
    # When
    send(receivers, lambda: len(receivers.told) == 20)
    # Then
    assert {host for host, _ in receivers.told} == {"other"}
    assert receivers.most["hangs"] <= MOST_PER_HOST


def test_event_that_cannot_be_told_does_not_stop_the_others(harness, send, caplog):
    # Given a job whose receiver is garbage
    finish(harness, "fast", 3)
    harness.client.hset(harness.keys.job_prefix + "f1", "webhook", b"[]")
    receivers = Receivers()
    # When
    send(receivers, lambda: len(receivers.told) == 2)
    # Then
    assert {message["data"]["id"] for _, message in receivers.told} == {"f0", "f2"}


def test_sender_that_fails_leaves_nothing_open(real_backend, monkeypatch):
    # Given one that has a connection, and then an error that it does not foresee
    async def claim(webhooks, *_):
        await webhooks._client.ping()
        raise ValueError("unforeseen")

    monkeypatch.setattr(WebhookStore, "claim", claim)
    secret = f"whsec_{base64.b64encode(KEYS[0]).decode()}"
    settings = Settings(redis_url=real_backend.url, webhook_secrets=secret)
    gc.disable()  # it would close what is left
    try:
        open_files = psutil.Process().num_fds()
        # When
        with pytest.raises(ValueError, match="unforeseen"):
            asyncio.run(sending.send_webhooks(settings))
        # Then
        assert psutil.Process().num_fds() <= open_files
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"text", {"status_code": 200, "body": "text"}),
        (b"\xff", {"status_code": 200, "body_b64": "/w=="}),
        (b"x" * 16_384, {"status_code": 200, "body": "x" * 16_384}),
        (b"x" * 16_385, None),
    ],
    ids=["text", "bytes", "largest", "too large"],
)
def test_result_is_told_if_it_is_small(harness, send, body, told):
    finish(harness, "fast", 1, Reply(200, body))
    receivers = Receivers()
    send(receivers, lambda: receivers.told)
    [(_, message)] = receivers.told
    assert message["type"] == "job.succeeded"
    assert message["data"].get("result") == told


def test_message_is_verified_with_either_of_two_secrets_and_no_other(harness, send):
    # When
    finish(harness, "fast", 1)
    receivers = Receivers()
    send(receivers, lambda: receivers.told)
    headers, body = receivers.last
    # Then
    for key in KEYS:
        assert Webhook(key).verify(body, headers)["type"] == "job.succeeded"
        for changed, content in ((headers, body + b" "), (headers | {"webhook-id": "msg"}, body)):
            with pytest.raises(WebhookVerificationError):
                Webhook(key).verify(content, changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(b"m" * 32).verify(body, headers)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ReceiverAnswer(301), "status 301, pending"),
        (ReceiverAnswer(404), "status 404, pending"),
        (ReceiverAnswer(500), "status 500, pending"),
        (ReceiverAnswer(410), "status 410, gone"),
        (ReceiverAnswer(0, error="refused"), "refused, pending"),
        (ReceiverAnswer(299), ""),
    ],
)
def test_log_says_why_a_receiver_was_not_told(harness, send, caplog, answer, why):
    # Given
    finish(harness, "fast", 1)
    receivers = Receivers()
    receivers.answer = answer
    # When
    send(receivers, lambda: receivers.told and not receivers.now["fast"])
    # Then
    said = [text for text in caplog.messages if text.startswith("webhook ")]
    assert said == ([f"webhook job=f0 event=succeeded host=fast: {why}"] if why else [])


@pytest.mark.parametrize("status", [200, 299, 410, 301, 404, 500, 0])
def test_success_and_gone_end_it_and_all_else_is_tried_again_by_the_schedule(status):
    assert WAITS_S == (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
    ends = {200: WebhookOutcome.DELIVERED, 299: WebhookOutcome.DELIVERED, 410: WebhookOutcome.GONE}
    for tries, wait_s in enumerate(WAITS_S):
        outcome, again_s = ReceiverAnswer(status).outcome(tries)
        if status in ends:
            assert (outcome, again_s) == (ends[status], 0.0)
        else:
            assert outcome is WebhookOutcome.PENDING
            assert wait_s * (1 - JITTER) <= again_s <= wait_s * (1 + JITTER)
    at_last = ReceiverAnswer(status).outcome(len(WAITS_S))
    assert at_last == (ends.get(status, WebhookOutcome.FAILED), 0.0)


def test_retry_after_is_heeded_within_reason():
    assert ReceiverAnswer(503, "120").outcome(0)[1] == 120
    assert ReceiverAnswer(503, "999999999").outcome(0)[1] == WAITS_S[-1]
    for nonsense in ("", "-5", "soon", "\u0665", "Thu, 99 Foo 2026"):
        assert ReceiverAnswer(503, nonsense).outcome(0)[1] < 6
