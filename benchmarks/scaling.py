"""Whether cost grows as it should: with workers, nodes, waiting requests, and for one client alone.

    python -m benchmarks.scaling

A model that naps 50 ms per batch and computes nothing: workers are slow and processors free.
"""

import asyncio
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil

from batching.models.spec import VersionKey
from batching.protocol import Batch, Part, Reply, Request
from batching.store.channel import SUBMIT_AT_ONCE
from batching.store.clients import AsyncClient, Client, connect, connect_async
from batching.store.ingress_queue import IngressQueue, Submission
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.worker_queue import WorkerQueue
from benchmarks.measuring import records
from benchmarks.measuring.load import Load, drive_with_wrk, wrk_path
from benchmarks.measuring.processors import Meter
from benchmarks.measuring.records import Verdict, at_least, at_most
from benchmarks.servers.running import Torchferry
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

BATCH_SIZE, NAP_MS = 8, 50
LAYOUTS = {1: (1, 2, 4, 8), 2: (2, 4, 8), 4: (4, 8)}  # nodes: workers of all of them
# So many requests per worker are open that a batch is full before the one before it has ended.
OPEN_BATCHES = 3
LEAST_SHARE = 0.95
FULL_PERCENT = 90.0  # of a core by one process, or of the machine by all

DELAY_MS, FIXED_MORE_MS, ADAPTIVE_MS = 10, 1.5, 2.0
WAITING, CLAIMED, CLAIMS, CLAIM_MS = 10_000, 32, 200, 1.0
SETTLE_S = 1.0
KEY, DEAD_AFTER_MS = VersionKey("waiting", "1.0"), 600_000

Point = Mapping[str, Any]


def measure(is_short: bool) -> dict[str, Any]:
    wrk_path()
    seconds = 2 if is_short else 6
    alone_p50_ms = alone_ms(seconds, 1 if is_short else 3)
    points = list(throughputs({1: (1, 2)} if is_short else LAYOUTS, seconds))
    times = claim_times_ms()
    claim_ms = {"median": round(statistics.median(times), 3), "worst": max(times)}
    return {
        "measured": "how cost grows with workers, nodes and the queue",
        "seconds": seconds,
        "alone_p50_ms": alone_p50_ms,
        "points": points,
        "claim_ms": claim_ms,
        "verdicts": [
            *alone_verdicts(alone_p50_ms),
            *(judge(point, share) for point, share in zip(points, shares(points), strict=True)),
            at_most(
                claim_ms["median"],
                CLAIM_MS,
                f"claim of {CLAIMED} while {WAITING} wait: {{}}",
                "{:.2f} ms",
            ),
        ],
    }


def alone_ms(seconds: float, rounds: int) -> dict[str, float]:
    """Measures how long a single client waits, by policy: the median of its rounds' medians."""
    p50s_ms: dict[str, list[float]] = {"fixed": [], "adaptive": []}
    with Torchferry(handler="nap") as server:
        for policy in p50s_ms:
            asked = {"max_batch_delay": DELAY_MS, "batch_policy": policy}
            server.register(policy, batch_size=BATCH_SIZE, **asked)
        # In turns, so that a machine that slows down slows both.
        for _, policy in itertools.product(range(rounds), p50s_ms):
            load = Load(server.url_of(policy), b"0", 1, least_answer_bytes=1)
            report = drive_with_wrk(load, seconds)
            if report.errors:
                raise records.BenchmarkError(f"one client: {report.errors} were not answered")
            p50s_ms[policy].append(report.p50_ms)
    return {policy: round(statistics.median(times), 3) for policy, times in p50s_ms.items()}


def throughputs(layouts: Mapping[int, Sequence[int]], seconds: float) -> Iterator[Point]:
    """Measures throughput, and how full the machine was, each number of nodes on a server.

    Of one core, by the busiest process, and of all cores, by all processes, the load's maker too.
    """
    body = str(NAP_MS).encode()
    for nodes, counts in layouts.items():
        with Torchferry(handler="nap", nodes=nodes) as server:
            server.register("nap", batch_size=BATCH_SIZE, max_batch_delay=0, initial_workers=0)
            for workers in counts:
                asked = {"min_worker": workers // nodes, "synchronous": "true"}
                server.manage("PUT", "models/nap", **asked)
                time.sleep(SETTLE_S)  # until they are idle
                connections = OPEN_BATCHES * BATCH_SIZE * workers
                load = Load(server.url_of("nap"), body, connections, least_answer_bytes=len(body))
                kinds = server.processes().items()
                meters = [(role, Meter({role: [pid]})) for role, pids in kinds for pid in pids]
                psutil.cpu_percent()
                report = drive_with_wrk(load, seconds)
                machine_percent = psutil.cpu_percent()
                percent, busiest = max((meter.read()[role].percent, role) for role, meter in meters)
                yield {
                    "nodes": nodes,
                    "workers": workers,
                    "requests_per_s": report.requests_per_s,
                    "errors": report.errors,
                    "busiest": busiest,
                    "busiest_percent": round(percent, 1),
                    "machine_percent": machine_percent,
                }


@contextlib.contextmanager
def lone_store(runner: asyncio.Runner) -> Iterator[tuple[Client, AsyncClient, WorkerQueue]]:
    """Starts a Redis that knows the version KEY, and one worker of it, by its queue."""
    with EmbeddedRedis(find_server()) as server, connect(server.url) as client:
        async_client = connect_async(server.url)
        client.hset(VersionKeys.of(KEY).config, "max_queue", 2 * WAITING)
        runner.run(NodeQueue(async_client, DEAD_AFTER_MS).beat({KEY: ["worker"]}))
        yield client, async_client, WorkerQueue(client, KEY, "worker", DEAD_AFTER_MS)
        runner.run(async_client.aclose())


def claim_times_ms() -> list[float]:
    """Measures claims as their worker sees them, decoding included; before each WAITING wait."""
    wire = Request({}, [Part("body", "", b"x" * 1024)]).to_wire()
    numbers = itertools.count()
    took_ms = []
    with asyncio.Runner() as runner, lone_store(runner) as (client, async_client, worker):
        ingress = IngressQueue(async_client, KEY, "ingress", DEAD_AFTER_MS)

        def submit(count: int) -> None:
            requests = [Submission(f"r{next(numbers)}", 600_000, wire) for _ in range(count)]
            runner.run(ingress.submit(requests))

        while (missing := WAITING - client.llen(VersionKeys.of(KEY).queue)) > 0:
            submit(min(missing, SUBMIT_AT_ONCE))
        for _ in range(CLAIMS):
            took_ms.append(claim_and_reply_ms(worker))
            submit(CLAIMED)
        runner.run(ingress.close())
    return took_ms


def claim_and_reply_ms(worker: WorkerQueue) -> float:
    """Claims a full batch of CLAIMED and answers it; returns how long the claim took, in ms."""
    started_s = time.perf_counter()
    batch = worker.claim(CLAIMED, 0.0)
    took_ms = 1000 * (time.perf_counter() - started_s)
    assert isinstance(batch, Batch), batch
    assert len(batch) == CLAIMED
    worker.reply([item.owned for item in batch.items], [Reply(status=200, body=b"")] * CLAIMED)
    return took_ms


# --- what it comes to


def shares(points: Sequence[Point]) -> list[float]:
    """Returns each point's throughput per worker over that of one worker alone."""
    one = points[0]["requests_per_s"] / points[0]["workers"]
    return [point["requests_per_s"] / point["workers"] / one for point in points]


def alone_verdicts(alone_p50_ms: Mapping[str, float]) -> Iterator[Verdict]:
    for policy, bar_ms in {"fixed": DELAY_MS + FIXED_MORE_MS, "adaptive": ADAPTIVE_MS}.items():
        text = f"one client, delay {DELAY_MS} ms, {policy}: p50 {{}}"
        yield at_most(alone_p50_ms[policy], bar_ms, text, "{:.2f} ms")


def judge(point: Point, share: float) -> Verdict:
    where = f"nodes {point['nodes']}, workers {point['workers']}: {{}} of linear"
    verdict = at_least(100 * share, 100 * LEAST_SHARE, where, "{:.1f} %")
    if point["errors"]:
        return Verdict(False, f"{verdict.text}, {point['errors']} errors")
    percents = (point["busiest_percent"], point["machine_percent"])
    if verdict.is_reached or max(percents) < FULL_PERCENT:
        return verdict
    full = "a core is full: {} {:.0f} % of one, the machine {:.0f} %"
    return Verdict(None, f"{verdict.text}; {full.format(point['busiest'], *percents)}")


def markdown(record: Mapping[str, Any]) -> str:
    rows = [
        (
            *(point["nodes"], point["workers"], f"{point['requests_per_s']:.0f}"),
            f"{100 * share:.1f} %",
            f"{point['busiest']} {point['busiest_percent']:.0f} %",
            f"{point['machine_percent']:.0f} %",
        )
        for point, share in zip(record["points"], shares(record["points"]), strict=True)
    ]
    about = f"Batches of {BATCH_SIZE} that nap {NAP_MS} ms, {record['seconds']:.0f} s each:\n\n"
    heads = ("nodes", "workers", "requests/s", "of linear", "busiest process", "machine")
    return about + records.table_of(heads, rows)


if __name__ == "__main__":
    sys.exit(records.main("scaling", measure, markdown))
