"""How long a claim takes while many requests wait."""

import asyncio
import itertools
import time

from batching.models.spec import VersionKey
from batching.protocol import Batch, Part, Reply, Request
from batching.store.clients import connect, connect_async
from batching.store.ingress_queue import IngressQueue, Submission
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.submitter import SUBMIT_AT_ONCE
from batching.store.worker_queue import WorkerQueue

KEY = VersionKey("waiting", "1.0")
DEAD_AFTER_MS = 60_000
TTL_MS = 600_000
BODY_BYTES = 1024


def claim_times_ms(redis_url: str, *, waiting: int, limit: int, claims: int) -> list[float]:
    """Milliseconds of each claim of `limit` requests, as its worker sees it, decoding included.

    Before each of them exactly `waiting` wait.
    """
    wire = Request({}, [Part("body", "", b"x" * BODY_BYTES)]).to_wire()
    numbers = itertools.count()
    took_ms = []
    with asyncio.Runner() as runner, connect(redis_url) as client:
        async_client = connect_async(redis_url)
        ingress = IngressQueue(async_client, KEY, "ingress", DEAD_AFTER_MS)
        worker = WorkerQueue(client, KEY, "worker", DEAD_AFTER_MS)
        client.hset(VersionKeys.of(KEY).config, "max_queue", 2 * waiting)
        runner.run(NodeQueue(async_client, DEAD_AFTER_MS).beat({KEY: ["worker"]}))

        def submit(count: int) -> None:
            requests = [Submission(f"r{next(numbers)}", TTL_MS, wire) for _ in range(count)]
            runner.run(ingress.submit(requests))

        while (missing := waiting - client.llen(VersionKeys.of(KEY).queue)) > 0:
            submit(min(missing, SUBMIT_AT_ONCE))
        for _ in range(claims):
            started_s = time.perf_counter()
            batch = worker.claim(limit, 0.0)
            took_ms.append(1000 * (time.perf_counter() - started_s))
            assert isinstance(batch, Batch), batch
            assert len(batch) == limit
            items = [item.owned for item in batch.items]
            worker.reply(items, [Reply(status=200, body=b"")] * limit)
            submit(limit)
        runner.run(ingress.close())
        runner.run(async_client.aclose())
    return took_ms
