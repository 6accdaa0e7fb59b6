"""Versions with job tickets: a request is accepted for an idle worker, and refused otherwise."""

import time

import pytest

from batching import errors
from batching.batcher import Nothing
from batching.store.ingress_queue import Patience, Submission, SubmitCode
from tests.support import (
    DEAD_AFTER_MS,
    eventually_async,
    ids_of,
    items_of,
    make_reply,
    wire_of,
)
from tests.timing import assert_within
from tests.unit.batching.store.channels import ask, open_channel

QUEUED, NO_TICKET = SubmitCode.QUEUED, SubmitCode.NO_TICKET


class Team:
    """The workers of a version with job tickets."""

    def __init__(self, harness):
        self.harness = harness
        harness.client.hset(harness.keys.config, "job_ticket", 1)

    def idle(self, worker_id):
        """A worker that is ready and has nothing to do."""
        self.loading(worker_id)
        worker = self.harness.worker(worker_id)
        worker.give_tickets()
        return worker

    def busy(self):
        """worker-a, and request a, which it has claimed."""
        worker = self.idle("worker-a")
        assert self.harness.submit("a") == [QUEUED]
        claimed = worker.claim(1, 0.0)
        assert ids_of(claimed) == ["a"]
        return worker, items_of(claimed)

    def loading(self, worker_id):
        """A worker that its node beats for, and that is not ready yet."""
        seconds, microseconds = self.harness.client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        self.harness.client.zadd(self.harness.keys.worker_beats, {worker_id: now_ms})


@pytest.fixture
def team(harness):
    return Team(harness)


def test_submit_leaves_versions_without_tickets_alone(harness):
    # Given
    harness.client.hset(harness.keys.config, "job_ticket", 0)
    worker = harness.worker()

    # When
    codes = harness.submit("a", "b", "c")
    worker.reply(items_of(worker.claim(3, 0.0)), [make_reply("x")] * 3)
    assert worker.claim(1, 0.0) is Nothing.EMPTY

    # Then
    assert codes == [QUEUED] * 3
    assert not harness.client.exists(harness.keys.idle)


def test_submit_refuses_until_the_busy_worker_has_replied(harness, team):
    # Given
    worker, items = team.busy()
    assert harness.submit("b") == [NO_TICKET]

    # When
    worker.reply(items, [make_reply("A")])

    # Then: before the worker asks for more, so that a client with its answer may ask again
    assert harness.submit("c") == [QUEUED]


def test_submit_refuses_while_a_worker_works_for_a_client_that_left(harness, team):
    # Given
    worker, items = team.busy()

    # When
    harness.ingress().cancel(["a"])

    # Then
    assert harness.open_ids() == set()
    assert harness.submit("b") == [NO_TICKET]
    worker.reply(items, [make_reply("A")])
    assert harness.submit("b") == [QUEUED]


def test_submit_refuses_while_the_only_worker_loads(harness, team):
    # Given
    team.loading("worker-a")

    # When / Then
    assert harness.submit("a") == [NO_TICKET]


def test_submit_does_not_count_an_idle_worker_that_fell_silent(harness, team):
    # Given: its node still beats for it
    team.idle("worker-a")
    team.idle("worker-b")
    harness.client.zincrby(harness.keys.idle, -2 * DEAD_AFTER_MS, "worker-b")

    # When / Then
    assert harness.submit("a", "b") == [QUEUED, NO_TICKET]


# --- what was accepted once


def test_request_that_redis_lost_needs_no_ticket(harness, team):
    # Given
    team.busy()

    # When
    lost = Submission("lost", 60_000, wire_of("lost"), age_us=None)
    new = Submission("new", 60_000, wire_of("new"))
    codes = harness.ingress().submit([new, lost, new])

    # Then it is the next, and takes the next worker's ticket
    assert codes == [NO_TICKET, QUEUED, NO_TICKET]
    team.idle("worker-b")
    assert harness.submit("new") == [NO_TICKET]


async def test_channel_submits_again_what_redis_lost_while_every_worker_is_busy(real_harness):
    async with open_channel(real_harness, audit_s=0.05) as channel:
        # Given
        worker = Team(real_harness).idle("worker-a")
        asked = ask(channel, "a")
        await eventually_async(lambda: real_harness.queued() == ["a"])
        old = items_of(worker.claim(1, 0.0))

        # When
        real_harness.client.flushall()
        real_harness.open()
        Team(real_harness)
        await eventually_async(lambda: len(real_harness.queued()) == 1)

        # Then it runs after what the worker still does
        with pytest.raises(errors.NoTicket):
            await ask(channel, "new")
        worker.reply(old, [make_reply("old")])
        worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("again")])
        assert (await asked).body == b"again"


async def test_channel_says_that_no_worker_is_free_and_when_to_come_again(harness, team):
    team.loading("worker-a")

    async with open_channel(harness) as channel:
        with pytest.raises(errors.NoTicket) as caught:
            await ask(channel, "a")
        assert caught.value.message.startswith('No worker of model "digits" is free')
        assert caught.value.retry_after_s >= 1.0


async def test_channel_refuses_without_ticket_at_once_after_full_memory(real_harness, full_memory):
    team = Team(real_harness)

    async with open_channel(real_harness) as channel:
        # Given a worker that is free while a request finds no room, and is not when the next
        # one comes
        team.idle("worker-a")
        full_memory()
        with pytest.raises(errors.QueueMemoryFull):
            await ask(channel, "a")
        real_harness.client.config_set("maxmemory", 0)
        real_harness.client.delete(real_harness.keys.idle)
        asked_at = time.monotonic()
        # When
        with pytest.raises(errors.NoTicket):
            await ask(channel, "b")
        # Then
        assert_within(time.monotonic() - asked_at, Patience().version_s / 2)


def test_tickets_are_given_when_memory_is_full(real_harness, full_memory):
    # Given
    team = Team(real_harness)
    worker, items = team.busy()
    full_memory()

    # When
    other = real_harness.worker("worker-b")
    other.give_tickets()
    worker.reply(items, [make_reply("A")])

    # Then
    assert worker.claim(1, 0.0) is Nothing.EMPTY
    assert set(real_harness.client.zrange(real_harness.keys.idle, 0, -1)) == {
        b"worker-a",
        b"worker-b",
    }
