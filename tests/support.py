"""What many tests share and no fixture carries: waiting, backends, and a harness at the queue."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import NodeStatus
from batching.protocol import Batch, Owned, Part, Reply, Request, Wire
from batching.store import keys
from batching.store.clients import at, connect, connect_async
from batching.store.ingress_queue import IngressQueue, Submission, SubmitCode
from batching.store.jobs.job_records import Job
from batching.store.jobs.job_store import JobRequest, JobStore, WebhookStore
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.records import named_request
from batching.store.redis_errors import OutageLog
from batching.store.registry.registry import Registry
from batching.store.worker_queue import WorkerQueue
from tests.timing import assert_within

POLL_S = 0.01
DEAD_AFTER_MS = 3000
KEY = VersionKey("digits", "1.0")

# What is in a record's line, in its order, and then its bytes: batching/store/records.py.
RECORD_FIELDS = (
    "attempts",
    "owner",
    "chunks",
    "queued_us",
    "age_us",
    "ttl_ms",
    "ingress_id",
    "wire",
)


def eventually(predicate: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """The predicate's first true value; fails once `timeout_s` has passed without one."""
    value = _last_value(predicate, timeout_s)
    assert value, f"not true within {timeout_s} s"
    return value


def came_true(predicate: Callable[[], Any], timeout_s: float) -> bool:
    """Returns whether the predicate came true in time, for callers with a message of their own.

    A call only to wait would pass in silence; `eventually` is for that.
    """
    return bool(_last_value(predicate, timeout_s))


def _last_value(predicate: Callable[[], Any], timeout_s: float) -> Any:
    """The predicate's first true value, or what false it returned once the time had passed."""
    end = time.monotonic() + timeout_s
    while not (value := predicate()) and time.monotonic() < end:
        time.sleep(POLL_S)
    return value


def hold_connections(client: Any, count: int) -> int:
    """How many of the client's connections answered while all of them were held."""
    pool = client.connection_pool
    held = []
    try:
        for _ in range(count):
            held.append(connection := pool.get_connection())
            connection.send_command("PING")
        return sum(connection.read_response() == b"PONG" for connection in held)
    finally:
        for connection in held:
            pool.release(connection)
        pool.disconnect()


async def hold_connections_async(client: Any, count: int) -> int:
    """As `hold_connections`."""
    pool = client.connection_pool
    held = []
    try:
        for _ in range(count):
            held.append(connection := await pool.get_connection())
            await connection.send_command("PING")
        return sum([await connection.read_response() == b"PONG" for connection in held])
    finally:
        for connection in held:
            await pool.release(connection)
        await pool.disconnect()


@contextlib.contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """The block computes for `limit_s` at most, all threads of this process together.

    Without the collector: looking through all that a whole run of tests has imported takes longer
    than what is measured.
    """
    gc.collect()
    gc.disable()
    started_s = time.process_time()
    try:
        yield
        took_s = time.process_time() - started_s
    finally:
        gc.enable()
    assert_within(took_s, limit_s)


async def eventually_async(predicate: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """As `eventually`, on an event loop that goes on running."""
    end = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < end, f"not true within {timeout_s} s"
        await asyncio.sleep(POLL_S)
    return value


def make_outage(redis_url: str = "") -> OutageLog:
    """Returns the log in which one part that calls Redis notes that Redis is away."""
    return OutageLog(logging.getLogger("test"), redis_url)


def make_spec(**changes: Any) -> ModelSpec:
    """A spec of the version that the tests talk about."""
    fields = {
        "model_name": KEY.model_name,
        "model_version": KEY.model_version,
        "model_url": "digits.mar",
        "handler": "handler.py",
    }
    return ModelSpec(**{**fields, **changes})


def make_request(text: str = "", *, size: int = 0) -> Request:
    """A request whose body is `text`, filled up to `size` bytes."""
    body = text.encode().ljust(size, b".")
    return Request({"content-type": "text/plain"}, [Part("body", "text/plain", body)])


def wire_of(text: str, *, size: int = 0) -> Wire:
    return make_request(text, size=size).to_wire()


def body_of(request: Request) -> str:
    return request.parts[0].content.decode().rstrip(".")


def make_reply(text: str, *, size: int = 0) -> Reply:
    return Reply(status=200, body=text.encode().ljust(size, b"."))


@dataclass(slots=True)
class SimulatedClock:
    """Seconds that pass when the test says so."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Backend:
    """An empty Redis, and ways to reach it."""

    client: Any
    connect_async: Callable[[], Any]
    connect: Callable[[], Any]
    url: str = ""

    def leaks(self) -> list[str]:
        """Keys that would stay for ever although nothing in keys.py says so.

        A version's own may only stay while it is registered.
        """
        names = [name.decode() for name in self.client.scan_iter(count=1000)]
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.ttl(name)
            lifetimes = pipe.execute()
        return sorted(
            name
            for name, lifetime in zip(names, lifetimes, strict=True)
            if lifetime == -1 and not is_permanent(name, names)
        )


def is_permanent(name: str, others: Collection[str]) -> bool:
    if name in keys.PERMANENT:
        return True
    if not name.startswith("{model2:"):
        return False
    version_keys = VersionKeys.after(name[: name.index("}") + 1])
    return version_keys.config in others and name in version_keys.permanent()


def server_backend(url: str) -> Backend:
    """The real server, emptied and with its default settings."""
    client = connect(url)
    client.config_set("maxmemory", 0)
    client.flushall()
    return Backend(
        client=client,
        connect=lambda: _patient(connect(url)),
        connect_async=lambda: _patient(connect_async(url)),
        url=url,
    )


def _patient(client: Any) -> Any:
    """Lets the client wait for a connection for as long as a busy machine may stand still."""
    client.connection_pool.connection_kwargs["socket_connect_timeout"] = 30.0
    return client


async def join(queue: NodeQueue, node: NodeStatus) -> None:
    """Lets the node beat and puts its record into Redis, as after a heartbeat's first beat."""
    await queue.beat({}, node.node_id)
    await queue.describe(node)


class Blocking:
    """An async queue, called one at a time from a test that is not async."""

    def __init__(self, runner: asyncio.Runner, queue: Any) -> None:
        self._runner = runner
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._queue, name)
        return lambda *arguments, **options: self._runner.run(verb(*arguments, **options))


class QueueHarness:
    """Everybody who works at the queue of one version: ingresses, workers, a node.

    Redis owns the clock, so a test that needs time to have passed makes its subject older.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.client = backend.client
        self.keys = VersionKeys.of(KEY)
        self._runner = asyncio.Runner()
        self._async_client = backend.connect_async()
        self._clients: list[Any] = []
        self._ingresses: list[IngressQueue] = []

    def server(self) -> Any:
        """Returns a client of the one server that has the version's keys."""
        client = self.backend.connect()
        self._clients.append(client)
        return at(client, self.keys.tag)

    def close(self) -> None:
        for queue in self._ingresses:
            self._runner.run(queue.close())
        self._runner.run(self._async_client.aclose())
        self._runner.close()
        for client in self._clients:
            client.connection_pool.disconnect()

    def ingress(self, ingress_id: str = "ingress-a", dead_after_ms: int = DEAD_AFTER_MS) -> Any:
        queue = IngressQueue(self._async_client, KEY, ingress_id, dead_after_ms)
        self._ingresses.append(queue)
        return Blocking(self._runner, queue)

    def jobs(self, most_waiting: int = 1000, memory_share: float = 1.0) -> Any:
        store = JobStore(self._async_client, most_waiting, memory_share)
        return Blocking(self._runner, store)

    def webhooks(self) -> Any:
        return Blocking(self._runner, WebhookStore(self._async_client))

    def submit_job(self, job_id: str, size: int = 0, **options: Any) -> Any:
        request = JobRequest(
            job_id, wire_of(job_id, size=size), **{"ttl_ms": 60_000, "keep_ms": 120_000, **options}
        )
        outcome = self.jobs().submit(KEY, request)
        return SubmitCode.QUEUED if isinstance(outcome, Job) else outcome

    def node(self, max_attempts: int = 2) -> Any:
        return Blocking(self._runner, NodeQueue(self._async_client, DEAD_AFTER_MS, max_attempts))

    def worker(
        self, worker_id: str = "worker-a", memory: tuple[Path, int] = (Path(), 0)
    ) -> WorkerQueue:
        return WorkerQueue(self._connect(), KEY, worker_id, DEAD_AFTER_MS, memory)

    def join(self, node: NodeStatus) -> None:
        self._runner.run(join(NodeQueue(self._async_client, DEAD_AFTER_MS), node))

    def registry(self) -> Registry:
        return Registry(self._connect())

    def _connect(self) -> Any:
        client = self.backend.connect()
        self._clients.append(client)
        return client

    def open(self, max_queue: int = 100) -> None:
        """The version is registered and a worker is alive."""
        self.client.hset(self.keys.config, "max_queue", max_queue)
        seconds, microseconds = self.client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        self.client.zadd(self.keys.worker_beats, {"worker-a": now_ms})
        self.client.pexpire(self.keys.worker_beats, keys.LEASE_TTL_MS)

    def submit(self, *request_ids: str, ttl_ms: int = 60_000, ingress_id: str = "ingress-a") -> Any:
        submissions = [Submission(name, ttl_ms, wire_of(name)) for name in request_ids]
        return self.ingress(ingress_id).submit(submissions)

    # --- what is where

    def queued(self) -> list[str]:
        return _texts(self.client.lrange(self.keys.queue, 0, -1))

    def queued_jobs(self) -> list[str]:
        return _texts(self.client.lrange(self.keys.job_queue, 0, -1))

    def suspects(self) -> list[str]:
        return _texts(self.client.lrange(self.keys.suspects, 0, -1))

    def leased(self, worker_id: str = "worker-a") -> list[str]:
        """The ids that this worker owns, without their attempts."""
        return [name for name, _ in self.owned(worker_id)]

    def owned(self, worker_id: str = "worker-a") -> list[tuple[str, int]]:
        """What this worker owns, as (request id, attempt)."""
        entries = _texts(self.client.lrange(self.keys.lease_prefix + worker_id, 0, -1))
        pairs = [entry.rpartition(":") for entry in entries]
        return [(name, int(attempt)) for name, _, attempt in pairs]

    def open_ids(self) -> set[str]:
        return set(_texts(self.client.hkeys(self.keys.open)))

    def wakeups(self) -> int:
        return int(self.client.llen(self.keys.wakeups))

    def more_tokens(self) -> int:
        return int(self.client.llen(self.keys.more_prefix + "worker-a"))

    def done(self, ingress_id: str = "ingress-a") -> list[str]:
        entries = self.client.lrange(self.keys.done_prefix + ingress_id, 0, -1)
        return [named_request(entry) for entry in entries]

    def reply_value(self, request_id: str) -> bytes | None:
        value: bytes | None = self.client.get(self.keys.reply_prefix + request_id)
        return value

    def request(self, request_id: str) -> dict[str, str]:
        """The fields of an open request's record; empty when there is none."""
        record = self.client.hget(self.keys.open, request_id)
        if record is None:
            return {}
        line, _, wire = record.partition(b"\n")
        fields = [*line.decode().split(" "), wire.decode(errors="replace")]
        return dict(zip(RECORD_FIELDS, fields, strict=True))

    def change_request(self, request_id: str, **fields: object) -> None:
        """These fields of an open request's line are something else now."""
        line, _, wire = self.client.hget(self.keys.open, request_id).partition(b"\n")
        record = dict(zip(RECORD_FIELDS, line.decode().split(" "), strict=False))
        record |= {name: str(value) for name, value in fields.items()}
        self.write_record(request_id, " ".join(record.values()).encode() + b"\n" + wire)

    def write_record(self, request_id: str, record: bytes) -> None:
        """The whole record is this, whatever it is."""
        self.client.hset(self.keys.open, request_id, record)

    def has_body(self, request_id: str) -> bool:
        return bool(self.client.exists(self.keys.body_prefix + request_id))

    def counters(self) -> dict[str, int]:
        record = self.client.hgetall(self.keys.counters)
        return {name.decode(): int(value) for name, value in record.items()}

    def unaccounted(self) -> int:
        """Accepted requests that are neither in the system nor counted under an outcome: I9."""
        counters = self.counters()
        outcomes = ("replied", "cancelled", "expired", "orphaned", "failed", "refused")
        settled = sum(counters.get(name, 0) for name in outcomes)
        return counters.get("accepted", 0) - settled - len(self.open_ids())

    # --- time passes

    def age_request(self, request_id: str, ms: int) -> None:
        queued_us = int(self.request(request_id)["queued_us"])
        self.change_request(request_id, queued_us=queued_us - 1000 * ms)

    def silence_worker(self, worker_id: str = "worker-a", ms: int = 2 * DEAD_AFTER_MS) -> None:
        self.client.zincrby(self.keys.worker_beats, -ms, worker_id)

    def silence_ingress(self, ingress_id: str = "ingress-a", ms: int = 2 * DEAD_AFTER_MS) -> None:
        self.client.zincrby(self.keys.ingress_beats, -ms, ingress_id)

    def lose_request(self, request_id: str) -> None:
        """Its deadline passed so long ago that Redis has dropped it."""
        self.client.hdel(self.keys.open, request_id)


def _texts(values: Any) -> list[str]:
    return [value.decode() for value in values]


def ids_of(claimed: Any) -> list[str]:
    """The ids of a claimed batch, in its order."""
    assert isinstance(claimed, Batch), claimed
    return [item.request_id for item in claimed.items]


def items_of(claimed: Any) -> list[Owned]:
    """What `reply` needs of a claimed batch."""
    assert isinstance(claimed, Batch), claimed
    return [item.owned for item in claimed.items]


def attempts_of(claimed: Any) -> list[tuple[str, int]]:
    """The ids of a claimed batch, each with its attempt."""
    return [(item.request_id, item.attempt) for item in items_of(claimed)]


def command_lines(parent_pid: int) -> dict[int, list[str]]:
    """Returns process id -> command line of the children that live."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent_pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                found[child.pid] = child.cmdline()
    return found
