"""F21 and F37: the reply to any command is cut at any byte; nothing is lost, nothing done twice.

Each case sends one command through a proxy that cuts its reply and resets the connection, does what
the caller of that verb does then, and looks at the queue from outside.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from batching.batcher import Batcher
from batching.models.statuses import NodeStatus
from batching.policy import FixedPolicy
from batching.protocol import INLINE_LIMIT_BYTES, Batch, Owned
from batching.store.background_tasks import end_tasks
from batching.store.clients import BLOCK_S, connect, connect_async
from batching.store.ingress_queue import IngressQueue, Submission
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.redis_errors import RedisError
from batching.store.scripts import loader as scripts
from batching.store.worker_queue import WorkerQueue
from tests.chaos.proxy import ChaosProxy
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    Blocking,
    QueueHarness,
    attempts_of,
    eventually,
    eventually_async,
    ids_of,
    items_of,
    make_outage,
    make_reply,
    wire_of,
)
from workers.handling.worker import Worker
from workers.node.heartbeat import Heartbeat

CUTS = (0, 1, 7, -1)
NODE = NodeStatus("node-a", "host", 1, "now")
LARGE = 2 * INLINE_LIMIT_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


class Line:
    """The three parts' queues over connections that the proxy can cut."""

    def __init__(self, harness: QueueHarness, proxy: ChaosProxy) -> None:
        self.harness = harness
        self.proxy = proxy
        self._runner = asyncio.Runner()
        self._async_client = connect_async(proxy.url)
        self._client = connect(proxy.url)
        self._ingress = IngressQueue(self._async_client, KEY, "ingress-a", DEAD_AFTER_MS)
        self.ingress: Any = Blocking(self._runner, self._ingress)
        self.node: Any = Blocking(self._runner, NodeQueue(self._async_client, DEAD_AFTER_MS, 2))
        self.worker = WorkerQueue(self._client, KEY, "worker-a", DEAD_AFTER_MS)
        for path in Path(scripts.__file__).parent.glob("*.lua"):
            harness.client.script_load(scripts.source(path.stem))
        self.warm_up()

    def warm_up(self) -> None:
        """Makes the connections, so that the next reply is that of the next command."""
        self.worker._connection.call(("PING",))
        queue = self._ingress
        for connection in (queue._listener, queue._submitter, queue._large):
            self._runner.run(connection.call(("EXISTS", "x")))
        # Last: the connections of their own come from the same pools.
        self._client.ping()
        self._runner.run(self._async_client.ping())

    def cut(self, verb: Callable[[], Any], at: int, *, after: int = 0) -> None:
        """Has Redis carry out the verb's command, and cuts the reply to its caller."""
        before, connections = self.proxy.cuts, self.proxy.connections
        self.proxy.cut_next(at, after=after)
        with pytest.raises((RedisError, OSError)):
            verb()
        assert self.proxy.cuts == before + 1
        self.warm_up()
        # A connection that may hold the rest of a reply is not used again.
        assert self.proxy.connections > connections

    def close(self) -> None:
        self._client.close()
        self._runner.run(self._ingress.close())
        self._runner.run(self._async_client.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def proxy(redis_server, tmp_path_factory):
    path = redis_server.socket_path.with_name("proxy.sock")
    with ChaosProxy(path, redis_server.socket_path) as proxy:
        yield proxy


@pytest.fixture
def line(real_harness, proxy):
    line = Line(real_harness, proxy)
    yield line
    proxy.heal()
    line.close()


def leased(harness: QueueHarness, *names: str) -> list[Owned]:
    harness.submit(*names)
    return items_of(harness.worker().claim(len(names), 0.0))


def settle(harness: QueueHarness) -> None:
    """Answers all that waits; asserts that nothing is lost."""
    worker = harness.worker("last")
    while isinstance(claimed := worker.claim(8, 0.0), Batch):
        worker.reply(items_of(claimed), [make_reply("x")] * len(claimed))
    assert harness.open_ids() == set()
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("at", CUTS)
@pytest.mark.parametrize("size", [0, LARGE], ids=["small", "large"])
def test_f21_f37_submit_again_queues_once(line, at, size):
    names = "a" if size else "ab"
    submissions = [Submission(name, 60_000, wire_of(name, size=size)) for name in names]

    # When
    line.cut(lambda: line.ingress.submit(submissions), at)
    codes = line.ingress.submit(submissions)

    # Then: where a large body was answered first, the script may not have reached Redis
    assert codes == [2] * len(names) or (size and codes == [1])
    assert line.harness.queued() == list(names)
    assert line.harness.counters()["accepted"] == len(names)
    settle(line.harness)
    assert sorted(line.harness.done()) == list(names)


@pytest.mark.parametrize("at", CUTS)
@pytest.mark.parametrize("size", [0, LARGE], ids=["small", "large"])
def test_f21_claim_whose_answer_was_cut_is_given_back(line, at, size):
    names = [f"r{number}" for number in range(4)]
    line.harness.ingress().submit([Submission(n, 60_000, wire_of(n, size=size)) for n in names])

    # When: with large bodies, the cut is in the bodies and not in the claim
    line.cut(lambda: line.worker.claim(4, 0.0), at, after=1 if size else 0)
    assert line.harness.leased() == names
    recovered = line.worker.recover()
    claimed = line.worker.claim(4, 0.0)

    # Then everything is there again, in order, as if it had never been taken
    assert recovered == 4
    assert attempts_of(claimed) == [(name, 1) for name in names]
    assert line.worker.reply(items_of(claimed), [make_reply("x")] * 4) == [1] * 4
    assert line.harness.unaccounted() == 0


@pytest.mark.parametrize("at", CUTS)
def test_f21_recover_may_be_cut_itself(line, at):
    names = ["a", "b", "c"]
    line.harness.submit(*names)
    line.cut(lambda: line.worker.claim(3, 0.0), at)

    # When
    line.cut(line.worker.recover, at)
    again = line.worker.recover()

    # Then
    assert again == 0
    assert line.harness.queued() == names
    assert {line.harness.request(name)["attempts"] for name in names} == {"0"}
    assert line.harness.client.zscore(line.harness.keys.worker_beats, "worker-a") is not None
    settle(line.harness)


def test_f21_recover_keeps_a_crash_suspect_alone_and_its_attempts(line):
    # Given a request that a worker died with, claimed again with an answer that was lost
    leased(line.harness, "suspect")
    line.harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    line.harness.open()
    line.harness.submit("innocent")
    line.cut(lambda: line.worker.claim(8, 0.0), 0)

    # When
    assert line.worker.recover() == 1

    # Then it still runs alone and before others, for the second time and not the third
    assert attempts_of(line.worker.claim(8, 0.0)) == [("suspect", 2)]
    assert line.harness.queued() == ["innocent"]


@pytest.mark.parametrize("at", CUTS)
@pytest.mark.parametrize("size", [0, LARGE], ids=["small", "large"])
def test_f21_reply_again_is_stored_once(line, at, size):
    # Given: a large reply is written before the script
    names = ["a"] if size else ["a", "b"]
    items = leased(line.harness, *names)
    replies = [make_reply(name, size=size) for name in names]

    # When
    line.cut(lambda: line.worker.reply(items, replies), at, after=1 if size else 0)
    codes = line.worker.reply(items, replies)

    # Then
    assert codes == [2] * len(names)
    assert line.harness.done() == names
    assert line.harness.counters()["replied"] == len(names)
    assert line.harness.unaccounted() == 0


@pytest.mark.parametrize("at", CUTS)
def test_f21_large_reply_whose_write_was_cut_is_sent_again(line, at):
    items = leased(line.harness, "a")

    # When
    line.cut(lambda: line.worker.reply(items, [make_reply("x", size=LARGE)]), at)
    codes = line.worker.reply(items, [make_reply("x", size=LARGE)])

    # Then
    assert codes == [1]
    assert line.ingress.fetch(["a"]) == {"a": b"a@1"}
    line.cut(lambda: line.ingress.fetch_large({"a": "1"}, {}), at)
    assert line.ingress.fetch_large({"a": "1"}, {})["a"][:1] == b"a"


@pytest.mark.parametrize("at", CUTS)
def test_f21_replies_list_that_was_cut_is_found_by_the_audit(line, at):
    items = leased(line.harness, "a")
    line.harness.worker().reply(items, [make_reply("x")])

    # When the ids are popped, and the ingress does not get them
    line.cut(lambda: line.ingress.receive([]), at)
    assert line.harness.done() == []

    # Then the audit tells
    line.cut(lambda: line.ingress.audit(["a"]), at)
    assert line.ingress.audit(["a"]) == [2]
    line.cut(lambda: line.ingress.fetch(["a"]), at)
    assert line.ingress.fetch(["a"])["a"].startswith(b"a")
    line.cut(lambda: line.ingress.discard(["a"]), at)
    line.ingress.discard(["a"])
    assert line.harness.reply_value("a") is None


@pytest.mark.parametrize("at", CUTS)
def test_f21_cancel_again_is_harmless(line, at):
    line.harness.submit("a", "b")

    # When
    line.cut(lambda: line.ingress.cancel(["a"]), at)
    codes = line.ingress.cancel(["a"])

    # Then
    assert codes == [0]
    assert line.harness.counters()["cancelled"] == 1
    assert ids_of(line.harness.worker().claim(8, 0.0)) == ["b"]
    assert line.harness.unaccounted() == 1 - 1


@pytest.mark.parametrize("at", CUTS)
def test_f21_wakeup_and_window_that_were_cut_only_wake(line, at):
    # Given a wake-up that is popped into the broken connection
    line.harness.submit("a")
    line.cut(lambda: line.worker.wait_for_work(BLOCK_S), at)

    # When the worker looks by itself
    claimed = line.worker.claim(8, 10.0)

    # Then it may open a window, whose end may be cut as well
    assert claimed.waiting == 1
    assert not line.worker.wait_more(0.005)
    line.proxy.cut_next(at)
    line.harness.submit(*"bcdefgh")
    with pytest.raises((RedisError, OSError)):
        line.worker.wait_more(2.0)
    assert ids_of(line.worker.claim(8, 10.0)) == list("abcdefgh")


@pytest.mark.parametrize("at", CUTS)
def test_f21_node_verbs_may_be_repeated(line, at, record_promise):
    harness, node = line.harness, line.node
    leased(harness, "a", "b")

    # Beats
    harness.silence_worker()
    line.cut(lambda: node.beat({KEY: ["worker-a"]}), at)
    assert node.dead_workers([KEY]) == []

    # Reclaim: what was taken back stays taken back, and nothing twice
    line.cut(lambda: node.reclaim(KEY, "worker-a", ReclaimMode.CRASHED), at)
    assert node.reclaim(KEY, "worker-a", ReclaimMode.CRASHED) == 0
    assert harness.suspects() == ["a", "b"]
    assert harness.counters()["reclaimed"] == 2

    # Refuse: each request has one answer
    harness.client.delete(harness.keys.worker_beats)
    line.cut(lambda: node.refuse_waiting(KEY, "no_worker"), at)
    assert node.refuse_waiting(KEY, "no_worker") == 0
    assert sorted(harness.done()) == ["a", "b"]
    assert harness.unaccounted() == 0
    record_promise("F21", "11 verbs x 4 cuts clean")


class Beats:
    """A node's heartbeat over the line that can be cut, at a fast pace."""

    def __init__(self, line: Line) -> None:
        self.introductions = 0
        self._line = line
        self._heart = Heartbeat(
            line.node._queue, NODE, list, list, self._count, beat_s=0.01, outage=make_outage()
        )

    def run_until_introduced(self) -> None:
        """Goes on beating for a while afterwards, as a second introduction would be a fault."""

        async def run() -> None:
            beating = asyncio.create_task(self._heart.run())
            await eventually_async(lambda: self.introductions)
            await asyncio.wait({beating}, timeout=0.2)
            await end_tasks([beating])

        self._line.node._runner.run(run())

    def _count(self) -> None:
        self.introductions += 1


@pytest.mark.parametrize("after", [0, 1], ids=["beat", "record"])
@pytest.mark.parametrize("at", CUTS)
def test_f21_node_whose_first_beat_was_cut_introduces_itself_again(line, at, after):
    # Given a node that joins while the answer to its beat, or to its record, is lost
    beats = Beats(line)
    line.proxy.cut_next(at, after=after)

    # When it goes on beating
    beats.run_until_introduced()

    # Then it is known with its record, and has been told so, once for the join
    assert line.harness.client.hexists("{ferry}:node_info", NODE.node_id)
    assert line.node.dead_nodes() == []
    assert beats.introductions == 1


class Served:
    """A worker that serves over the line during the with block, and what it ran."""

    def __init__(
        self, line: Line, at_first_run: Callable[[], None] = lambda: None, **limits: float
    ) -> None:
        self.runs: list[list[str]] = []
        self._at_first_run = at_first_run
        batcher = Batcher(line.worker, FixedPolicy(8, 0.0))
        self._worker = Worker(batcher, line.worker, self._run, outage=make_outage(), **limits)
        self._thread = threading.Thread(target=self._worker.serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        self._thread.join(10)

    def _run(self, batch: Batch) -> list[Any]:
        self.runs.append([item.request_id for item in batch.items])
        if len(self.runs) == 1:
            self._at_first_run()
        return [make_reply("x")] * len(batch)


@pytest.mark.parametrize("at", CUTS)
def test_f21_worker_whose_claim_was_cut_serves_it_all_the_same(line, at):
    # Given requests, and a worker that will not hear what its first claim brought
    line.harness.submit("a", "b")
    line.proxy.cut_next(at, after=1)  # it looks first for what it may own

    # When it goes on
    with Served(line) as served:
        eventually(lambda: sorted(line.harness.done()) == ["a", "b"])

    # Then they were run once
    assert served.runs == [["a", "b"]]
    assert line.harness.unaccounted() == 0


def test_f21_claim_that_arrives_late_is_given_back_by_a_worker_that_waits(line):
    # Given a worker whose claim was lost, and that waits for work again
    harness = line.harness
    line.proxy.cut_next(0, after=1)  # it looks first for what it may own
    with Served(line):
        eventually(lambda: line.proxy.cuts and harness.client.info("clients")["blocked_clients"])

        # When that claim is carried out after all, and brings something without waking it
        harness.client.hset(harness.keys.gather, mapping={"worker": "unknown", "limit": 100})
        harness.submit("a")
        assert ids_of(harness.worker("worker-a").claim(1, 0.0)) == ["a"]
        harness.client.delete(harness.keys.gather)

        # Then the request is served all the same
        eventually(lambda: harness.done() == ["a"], 5)
    assert harness.unaccounted() == 0


def test_f16_worker_whose_replies_were_never_taken_gives_the_requests_back(line):
    # Given a worker whose line goes down under its batch for longer than it keeps replies
    known = line.proxy.connections
    line.harness.submit("a", "b")
    with Served(line, line.proxy.go_down, reply_patience_s=0.1) as served:
        eventually(lambda: served.runs)
        eventually(lambda: line.proxy.connections > known + 4)

        # When the line is back
        line.proxy.heal()

        # Then the requests run again, and are answered
        eventually(lambda: sorted(line.harness.done()) == ["a", "b"])
    assert served.runs == [["a", "b"], ["a", "b"]]
    assert line.harness.unaccounted() == 0
