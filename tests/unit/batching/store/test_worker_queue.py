import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from batching.batcher import Batcher, Nothing, Partial
from batching.policy import FixedPolicy
from batching.store.clients import connect
from batching.store.ingress_queue import Submission
from batching.store.records import decode_reply
from batching.store.worker_queue import ParkedPop
from tests.support import (
    attempts_of,
    body_of,
    eventually,
    ids_of,
    items_of,
    make_outage,
    make_reply,
    wire_of,
)
from tests.timing import assert_within
from workers.handling.worker import Worker

TOKENS = "{ferry}:tokens"  # in a cluster, on the server of the client that is at hand


def serve_until_done(worker, harness, request_ids):
    """Lets the worker serve until these requests have their replies."""
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(worker.serve)
        try:
            eventually(lambda: sorted(harness.done()) == request_ids)
        finally:
            worker.stop()
            serving.result(10.0)


@pytest.fixture
def client(real_backend):
    client = connect(real_backend.url)
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def parked(client):
    """A parked pop on the list `tokens`."""
    return ParkedPop(client, TOKENS)


def is_blocked(server):
    return server.info("clients")["blocked_clients"] == 1


def asked(backend):
    """Counts the blocking pops that the server has begun and ended."""
    statistics = backend.client.info("commandstats").get("cmdstat_blpop", {})
    return statistics.get("calls", 0) + is_blocked(backend.client)


# --- the parked pop


def test_parked_pop_ends_by_the_local_clock_on_an_idle_server(parked):
    # Given
    waits_s = []

    # When
    for _ in range(9):
        started = time.monotonic()
        assert not parked.wait(0.020)
        waits_s.append(time.monotonic() - started)

    # Then: Redis by itself would look once per tick, every 200 ms
    assert min(waits_s) >= 0.019
    assert_within(statistics.median(waits_s), 0.025)


@pytest.mark.parametrize("block_s", [5.0, 0.05], ids=["blocked", "asked again"])
def test_parked_pop_wakes_at_once(client, real_backend, block_s):
    # Given one for which the server waits all the time, or is asked more than once
    parked = ParkedPop(client, TOKENS, block_s=block_s)
    real_backend.client.config_resetstat()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(parked.wait, 5.0)
        least = 1 if block_s > 1 else 2
        eventually(lambda: is_blocked(real_backend.client) and asked(real_backend) >= least)

        # When
        started = time.monotonic()
        real_backend.client.rpush(TOKENS, "1")

        # Then
        assert waiting.result(5.0)
        assert_within(time.monotonic() - started, 0.1)
    assert not real_backend.client.exists(TOKENS)


def test_parked_pop_is_not_lost_with_a_connection_that_was_closed_while_idle(client, real_backend):
    # Given a pop that has ended by itself, as servers with a `timeout` close no blocked connection
    parked = ParkedPop(client, TOKENS, block_s=0.05)
    assert not parked.wait(0.01)
    eventually(lambda: not is_blocked(real_backend.client))
    real_backend.client.client_kill_filter(_type="normal", skipme=True)

    # When / Then: nothing was under way, so no caller need hear of it
    real_backend.client.rpush(TOKENS, "1")
    assert parked.wait(1.0)


def test_parked_pop_resumes_the_pop_that_it_left_parked(parked, real_backend):
    # Given
    assert not parked.wait(0.01)
    assert is_blocked(real_backend.client)

    # When: the element comes between two waits
    real_backend.client.rpush(TOKENS, "1")
    assert real_backend.client.llen(TOKENS) == 0

    # Then
    assert parked.wait(1.0)
    assert not is_blocked(real_backend.client)


def test_parked_pop_works_again_after_its_connection_was_killed(parked, real_backend):
    # Given
    assert not parked.wait(0.01)
    real_backend.client.client_kill_filter(_type="normal", skipme=True)

    # When
    with pytest.raises(redis.ConnectionError):
        parked.wait(1.0)

    # Then
    real_backend.client.rpush(TOKENS, "1")
    assert parked.wait(1.0)


# --- wakeups and more tokens


def test_answer_that_redis_does_not_take_fails_alone(real_harness):
    # Given a batch with an answer that is too large for this Redis
    texts = {"a": "x" * 3_000_000, "b": "fits"}
    server = real_harness.server()
    server.config_set("proto-max-bulk-len", 1024 * 1024)
    real_harness.submit("a", "b")
    runs = []

    def run(batch):
        runs.append([item.request_id for item in batch.items])
        return [make_reply(texts[item.request_id]) for item in batch.items]

    queue = real_harness.worker()
    batcher = Batcher(queue, FixedPolicy(8, 0.0))
    worker = Worker(batcher, queue, run, reply_patience_s=0.1, outage=make_outage())
    # When
    try:
        serve_until_done(worker, real_harness, ["a", "b"])
    finally:
        server.config_set("proto-max-bulk-len", 512 * 1024 * 1024)

    # Then
    refused, fitting = (decode_reply(name, real_harness.reply_value(name)) for name in "ab")
    assert (refused.status, refused.reason) == (500, "internal_error")
    assert fitting.body == b"fits"
    assert runs == [["a", "b"]]


def idle_worker(batcher, queue):
    def run(_):
        pytest.fail("nothing to run")

    return Worker(batcher, queue, run, idle_s=10.0, outage=make_outage())


@pytest.mark.parametrize("is_collecting", [False, True], ids=["idle", "collecting"])
def test_worker_that_waits_ends_at_once_when_it_is_stopped(real_harness, is_collecting):
    # Given
    if is_collecting:
        real_harness.submit("a")
    queue, other = real_harness.worker(), real_harness.worker("worker-b")
    batcher = Batcher(queue, FixedPolicy(8, 10.0))
    worker, server = idle_worker(batcher, queue), real_harness.server()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(worker.serve)
        eventually(lambda: is_blocked(server))
        assert other.claim(8, 10.0) is (Nothing.BUSY if is_collecting else Nothing.EMPTY)

        # When
        started = time.monotonic()
        worker.stop()

        # Then
        serving.result(5.0)
        assert_within(time.monotonic() - started, 0.1)

    if is_collecting:
        # And another one goes on collecting, for what is left of the window
        assert other.wait_for_work(5.0)
        assert isinstance(other.claim(8, 10.0), Partial)
        assert real_harness.queued() == ["a"]


# --- a claim whose answer was lost


@pytest.mark.parametrize("count", [2, 600])
def test_recover_puts_what_was_claimed_unknowingly_back_in_its_old_place(harness, count):
    # Given
    names = [f"r{number}" for number in range(count)]
    harness.open(max_queue=1000)
    harness.submit(*names, "last")
    worker = harness.worker()
    worker.claim(count, 0.0)

    # When
    recovered = worker.recover()

    # Then: no attempt was used, and the worker is not taken for dead
    assert recovered == count
    assert harness.queued() == [*names, "last"]
    assert harness.leased() == []
    assert attempts_of(worker.claim(2, 0.0)) == [("r0", 1), ("r1", 1)]
    assert harness.client.zscore(harness.keys.worker_beats, "worker-a") is not None
    assert harness.unaccounted() == 0


def test_batch_that_cannot_be_read_again_is_given_back_and_run_anew(real_harness):
    # Given a batch whose handler failed just before Redis was away
    real_harness.submit("a", "b")
    runs = []

    def run(batch):
        runs.append(attempts_of(batch))
        if len(runs) == 1:
            raise redis.ConnectionError
        return [make_reply("x")] * len(batch)

    queue = real_harness.worker()
    worker = Worker(Batcher(queue, FixedPolicy(8, 0.0)), queue, run, outage=make_outage())
    # When
    serve_until_done(worker, real_harness, ["a", "b"])

    # Then: no attempt was used
    assert runs == [[("a", 1), ("b", 1)]] * 2


# --- bodies, also large ones


def test_changed_bodies_are_read_again(harness):
    # Given a handler that has changed what it was given
    sizes = {"small": 10, "large": 50_000, "gone": 20}
    submissions = [
        Submission(name, 60_000, wire_of(name, size=size)) for name, size in sizes.items()
    ]
    harness.ingress().submit(submissions)
    worker = harness.worker()
    items = worker.claim(3, 0.0).items
    for item in items:
        item.request.parts[0].content.clear()
    harness.client.hdel(harness.keys.open, "gone")

    # When
    again = worker.read_again(items)

    # Then
    assert [item.owned for item in again] == [item.owned for item in items]
    assert [body_of(item.request) for item in again] == ["small", "large", ""]
    assert len(again[1].request.parts[0].content) == 50_000


# --- what cannot be read


def test_claim_answers_a_request_whose_large_body_is_gone(harness, caplog):
    # Given
    large = [Submission(name, 60_000, wire_of(name, size=50_000)) for name in ("a", "b")]
    harness.ingress().submit(large)
    harness.client.delete(harness.keys.body_prefix + "a")

    # When
    claimed = harness.worker().claim(2, 0.0)

    # Then
    assert ids_of(claimed) == ["b"]
    assert decode_reply("a", harness.reply_value("a")).status == 500
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_claim_never_gives_one_request_to_two_of_many_workers(real_harness):
    # Given
    names = [f"r{number}" for number in range(200)]
    real_harness.open(max_queue=1000)
    real_harness.submit(*names)

    def drain(worker):
        taken = []
        while (claimed := worker.claim(3, 0.0)) is not Nothing.EMPTY:
            worker.reply(items_of(claimed), [make_reply("x")] * len(claimed))
            taken += ids_of(claimed)
        return taken

    # When
    with ThreadPoolExecutor(3) as pool:
        workers = [real_harness.worker(f"worker-{number}") for number in range(3)]
        taken = [name for names_taken in pool.map(drain, workers) for name in names_taken]

    # Then
    assert sorted(taken) == sorted(names)
    assert real_harness.unaccounted() == 0
