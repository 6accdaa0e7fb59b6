"""Whether cost grows as it should: with workers, nodes, waiting requests, and for one client alone.

    python -m benchmarks.scaling

A model that naps 50 ms per batch and computes nothing: workers are slow and processors free. Exit
code 0: every bar is reached; 1: one is missed; 2: one could not be judged, because a core was full.
"""

import argparse
import asyncio
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
from batching.store.clients import connect, connect_async
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
ROUNDS = 3
SETTLE_S = 1.0

Point = Mapping[str, Any]


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], Iterator[Verdict]]:
    wrk_path()
    seconds, is_short = options.seconds, options.short
    record: dict[str, Any] = {
        "measured": "how cost grows with workers, nodes and the queue",
        "seconds": seconds,
        "alone_p50_ms": alone_ms(seconds, 1 if is_short else ROUNDS),
        "points": list(throughputs({1: (1, 2)} if is_short else LAYOUTS, seconds)),
    }
    times = claim_times_ms()
    record["claim_ms"] = {"median": round(statistics.median(times), 3), "worst": max(times)}
    return record, verdicts(record)


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
                raise records.BenchmarkError(
                    f"{report.errors} requests of one client were not answered"
                )
            p50s_ms[policy].append(report.p50_ms)
    return {policy: round(statistics.median(times), 3) for policy, times in p50s_ms.items()}


def throughputs(layouts: Mapping[int, Sequence[int]], seconds: float) -> Iterator[Point]:
    """Measures a point per number of nodes and workers, each on servers of its own."""
    for nodes, counts in layouts.items():
        with Torchferry(handler="nap", nodes=nodes) as server:
            server.register("nap", batch_size=BATCH_SIZE, max_batch_delay=0, initial_workers=0)
            for workers in counts:
                asked = {"min_worker": workers // nodes, "synchronous": "true"}
                server.manage("PUT", "models/nap", **asked)
                time.sleep(SETTLE_S)  # until they are idle
                yield _point(server, nodes, workers, seconds)


def _point(server: Torchferry, nodes: int, workers: int, seconds: float) -> Point:
    """Measures throughput and how full the machine was.

    Of one core, by the busiest process, and of all cores, by all processes, the load's maker too.
    """
    body = str(NAP_MS).encode()
    connections = OPEN_BATCHES * BATCH_SIZE * workers
    load = Load(server.url_of("nap"), body, connections, least_answer_bytes=len(body))
    kinds = server.processes()
    meters = [(role, Meter({role: [pid]})) for role, pids in kinds.items() for pid in pids]
    psutil.cpu_percent()
    report = drive_with_wrk(load, seconds)
    machine_percent = psutil.cpu_percent()
    busiest_percent, busiest = max((meter.read()[role].percent, role) for role, meter in meters)
    return {
        "nodes": nodes,
        "workers": workers,
        "requests_per_s": report.requests_per_s,
        "errors": report.errors,
        "busiest": busiest,
        "busiest_percent": round(busiest_percent, 1),
        "machine_percent": machine_percent,
    }


def claim_times_ms() -> list[float]:
    """Measures claims as their worker sees them, decoding included; before each WAITING wait."""
    key = VersionKey("waiting", "1.0")
    wire = Request({}, [Part("body", "", b"x" * 1024)]).to_wire()
    numbers = itertools.count()
    took_ms = []
    with (
        EmbeddedRedis(find_server()) as redis,
        asyncio.Runner() as runner,
        connect(redis.url) as client,
    ):
        async_client = connect_async(redis.url)
        ingress = IngressQueue(async_client, key, "ingress", 60_000)
        worker = WorkerQueue(client, key, "worker", 60_000)
        client.hset(VersionKeys.of(key).config, "max_queue", 2 * WAITING)
        runner.run(NodeQueue(async_client, 60_000).beat({key: ["worker"]}))

        def submit(count: int) -> None:
            requests = [Submission(f"r{next(numbers)}", 600_000, wire) for _ in range(count)]
            runner.run(ingress.submit(requests))

        while (missing := WAITING - client.llen(VersionKeys.of(key).queue)) > 0:
            submit(min(missing, SUBMIT_AT_ONCE))
        for _ in range(CLAIMS):
            took_ms.append(claim_and_reply_ms(worker, CLAIMED))
            submit(CLAIMED)
        runner.run(ingress.close())
        runner.run(async_client.aclose())
    return took_ms


def claim_and_reply_ms(worker: WorkerQueue, limit: int) -> float:
    """Claims a full batch and answers it; returns how long the claim took, in ms."""
    started_s = time.perf_counter()
    batch = worker.claim(limit, 0.0)
    took_ms = 1000 * (time.perf_counter() - started_s)
    assert isinstance(batch, Batch), batch
    assert len(batch) == limit
    worker.reply([item.owned for item in batch.items], [Reply(status=200, body=b"")] * limit)
    return took_ms


# --- what it comes to


def shares(points: Sequence[Point]) -> list[float]:
    """Returns each point's throughput per worker over that of one worker alone."""
    one = points[0]["requests_per_s"] / points[0]["workers"]
    return [point["requests_per_s"] / point["workers"] / one for point in points]


def verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    alone, points = record["alone_p50_ms"], record["points"]
    text = f"one client, delay {DELAY_MS} ms, {{policy}}: p50 {{{{}}}}"
    bars_ms = {"fixed": DELAY_MS + FIXED_MORE_MS, "adaptive": ADAPTIVE_MS}
    for policy, bar_ms in bars_ms.items():
        yield at_most(alone[policy], bar_ms, text.format(policy=policy), "{:.2f} ms")
    for point, share in zip(points, shares(points), strict=True):
        yield _judge(point, share)
    text = f"claim of {CLAIMED} while {WAITING} wait: {{}}"
    yield at_most(record["claim_ms"]["median"], CLAIM_MS, text, "{:.2f} ms")


def _judge(point: Point, share: float) -> Verdict:
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
    options = records.parse("scaling", seconds=(6, 2))
    sys.exit(records.finish("scaling", lambda: measure(options), markdown, is_short=options.short))
