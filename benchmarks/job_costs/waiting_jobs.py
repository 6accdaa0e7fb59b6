"""How long a claim and a look take while many jobs wait, and the memory of each."""

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batching.models.spec import VersionKey
from batching.protocol import Batch, Part, Reply, Request
from batching.store.clients import connect, connect_async
from batching.store.jobs.job_records import Job
from batching.store.jobs.job_store import JobRequest, JobStore
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.worker_queue import WorkerQueue
from benchmarks.measuring.load import BenchmarkError
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

KEY = VersionKey("waiting", "1.0")
DEAD_AFTER_MS = 600_000
TTL_MS = KEEP_MS = 24 * 3600 * 1000
BODY_BYTES = 1024
LIMIT = 32
AT_ONCE = 512  # submits, which are written together


@dataclass(frozen=True, slots=True)
class Waiting:
    """Holds what it costs that so many jobs wait; times are medians.

    `look_first_ms` and `look_last_ms` are how long it takes to look at a job and its position, of
    the next one and of the last one that waits.
    """

    jobs: int
    claim_ms: float
    worst_claim_ms: float
    look_first_ms: float
    look_last_ms: float
    bytes_per_job: int


def measure(jobs: int, tries: int) -> Waiting:
    """Measures at a store of its own, as a worker and an ingress see it."""
    with (
        EmbeddedRedis(find_server()) as server,
        asyncio.Runner() as runner,
        connect(server.url) as client,
    ):
        async_client = connect_async(server.url)
        store = JobStore(async_client, 2 * jobs)
        worker = WorkerQueue(client, KEY, "worker", DEAD_AFTER_MS)
        client.hset(VersionKeys.of(KEY).config, "max_queue", 1000)
        runner.run(NodeQueue(async_client, DEAD_AFTER_MS).beat({KEY: ["worker"]}))
        # What the first of each costs once: scripts, connections, the index.
        runner.run(_submit(store, LIMIT))
        _claim(worker)

        before_bytes = client.info("memory")["used_memory"]
        job_ids = runner.run(_submit(store, jobs))
        after_bytes = client.info("memory")["used_memory"]
        looks = [
            [
                _took_ms(lambda place=place: runner.run(store.find(job_ids[place])))
                for _ in range(tries)
            ]
            for place in (0, -1)
        ]
        claims = []
        for _ in range(tries):
            claims.append(_claim(worker))
            runner.run(_submit(store, LIMIT))
        runner.run(async_client.aclose())
    return Waiting(
        jobs=jobs,
        claim_ms=round(statistics.median(claims), 3),
        worst_claim_ms=round(max(claims), 3),
        look_first_ms=round(statistics.median(looks[0]), 3),
        look_last_ms=round(statistics.median(looks[1]), 3),
        bytes_per_job=round((after_bytes - before_bytes) / jobs),
    )


async def _submit(store: JobStore, count: int) -> list[str]:
    """Submits so many jobs; returns their ids, roughly in their order."""
    wire = Request({}, [Part("body", "", b"x" * BODY_BYTES)]).to_wire()
    job_ids = [secrets.token_hex(16) for _ in range(count)]
    for first in range(0, count, AT_ONCE):
        some = job_ids[first : first + AT_ONCE]
        requests = [JobRequest(job_id, wire, TTL_MS, KEEP_MS) for job_id in some]
        answers = await asyncio.gather(*(store.submit(KEY, request) for request in requests))
        if not all(isinstance(answer, Job) for answer in answers):
            raise BenchmarkError(f"jobs were refused: {answers[0]}")
    return job_ids


def _claim(worker: WorkerQueue) -> float:
    """Claims a full batch of jobs and answers it; returns how long the claim took, in ms."""
    started_s = time.perf_counter()
    batch = worker.claim(LIMIT, 0.0)
    took_ms = 1000 * (time.perf_counter() - started_s)
    assert isinstance(batch, Batch), batch
    assert len(batch) == LIMIT
    worker.reply([item.owned for item in batch.items], [Reply(status=200, body=b"")] * LIMIT)
    return took_ms


def _took_ms(act: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - started_s)
