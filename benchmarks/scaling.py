"""Whether cost grows as it should: with workers, nodes, waiting requests, and for one client alone.

    python -m benchmarks.scaling

A model that naps 50 ms per batch and computes nothing: workers are slow and processors free. Exit
code 0: every bar is reached; 1: one is missed; 2: one could not be judged, because a core was full.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from benchmarks.claims import claim_times_ms
from benchmarks.measuring import driver
from benchmarks.measuring.figures import batch_count
from benchmarks.measuring.load import BenchmarkError, Load, drive_with_wrk, wrk_path
from benchmarks.measuring.processors import Meter
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import Verdict, at_least, at_most, finish, positive, to_record
from benchmarks.servers.fleet import Fleet
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

BATCH_SIZE, NAP_MS = 8, 50
LAYOUTS = {1: (1, 2, 4, 8), 2: (2, 4, 8), 4: (4, 8)}  # nodes: workers of all of them
# So many requests per worker are open that a batch is full before the one before it has ended.
OPEN_BATCHES = 3
LEAST_SHARE = 0.95
FULL_PERCENT = 90.0  # of a core by one process, or of the machine by all

DELAY_MS, FIXED_MORE_MS, ADAPTIVE_MS = 10, 1.5, 2.0
RATE_PER_S, IDLE_WORKERS, LEAST_BATCH_SHARE = 300.0, (1, 2, 4, 8), 0.95
WAITING, CLAIMED, CLAIMS, CLAIM_MS = 10_000, 32, 200, 1.0
SECONDS, SHORT_SECONDS, ROUNDS = 6.0, 2.0, 3
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """Throughput of so many workers, and how full the machine was."""

    nodes: int
    workers: int
    requests_per_s: float
    errors: int
    # Of one core, by the busiest process, and of all cores, by all processes, the load's maker too.
    busiest: str
    busiest_percent: float
    machine_percent: float

    @property
    def is_full(self) -> bool:
        """Returns whether a core, or the machine, was full."""
        return max(self.busiest_percent, self.machine_percent) >= FULL_PERCENT


def alone_ms(seconds: float, rounds: int) -> dict[str, float]:
    """Measures how long a single client waits, by policy: the median of its rounds' medians."""
    found: dict[str, list[float]] = {"fixed": [], "adaptive": []}
    with Fleet() as fleet:
        for policy in found:
            fleet.register(
                policy, batch_size=BATCH_SIZE, max_batch_delay=DELAY_MS, batch_policy=policy
            )
        # In turns, so that a machine that slows down slows both.
        for _, policy in itertools.product(range(rounds), found):
            report = drive_with_wrk(_load(fleet.url(policy), b"0", 1), seconds)
            if report.errors:
                raise BenchmarkError(f"{report.errors} requests of one client were not answered")
            found[policy].append(report.p50_ms)
    return {policy: round(statistics.median(times), 3) for policy, times in found.items()}


def throughputs(layouts: Mapping[int, Sequence[int]], seconds: float) -> Iterator[Point]:
    """Measures a point per number of nodes and workers, each on servers of its own."""
    for nodes, counts in layouts.items():
        with Fleet(nodes) as fleet:
            fleet.register("napping", batch_size=BATCH_SIZE, max_batch_delay=0, initial_workers=0)
            for workers in counts:
                fleet.scale("napping", workers // nodes)
                time.sleep(SETTLE_S)
                yield _point(fleet, nodes, workers, seconds)


def _point(fleet: Fleet, nodes: int, workers: int, seconds: float) -> Point:
    connections = OPEN_BATCHES * BATCH_SIZE * workers
    meters = {
        f"{role} {pid}": Meter({role: [pid]})
        for role, pids in fleet.processes().items()
        for pid in pids
    }
    psutil.cpu_percent()
    report = drive_with_wrk(_load(fleet.url("napping"), str(NAP_MS).encode(), connections), seconds)
    machine_percent = psutil.cpu_percent()
    used = {name: sum(u.percent for u in meter.read().values()) for name, meter in meters.items()}
    busiest = max(used, key=lambda name: used[name])
    return Point(
        nodes=nodes,
        workers=workers,
        requests_per_s=report.requests_per_s,
        errors=report.errors,
        busiest=busiest.rpartition(" ")[0],
        busiest_percent=round(used[busiest], 1),
        machine_percent=machine_percent,
    )


def batch_sizes(workers: Sequence[int], rate_per_s: float, seconds: float) -> dict[int, float]:
    """Measures the mean batch at a load that one worker can carry, by number of workers.

    Raises:
        BenchmarkError: a request was not answered, or /metrics says nothing of batches.
    """
    found = {}
    with Fleet() as fleet:
        fleet.register("steady", batch_size=32, max_batch_delay=DELAY_MS, initial_workers=0)
        for count in workers:
            fleet.scale("steady", count)
            time.sleep(SETTLE_S)
            before = batch_count(fleet.metrics_url, "steady")
            load = driver.Load(
                url=fleet.url("steady"),
                body=b"0",
                headers={"content-type": "application/octet-stream"},
                connections=256,
                rate_per_s=rate_per_s,
                duration_s=seconds,
                warmup_s=0.0,
            )
            outcome = driver.drive(load)
            after = batch_count(fleet.metrics_url, "steady")
            if len(outcome.latencies_s) < sum(outcome.statuses.values()) or after is None:
                raise BenchmarkError(f"not all were answered: {dict(outcome.statuses)}")
            mean = after.batches and after.requests / after.batches
            found[count] = round(mean if before is None else after.since(before) or 0.0, 2)
    return found


def claim_ms(claims: int) -> dict[str, float]:
    """Measures the median and the worst of claims while many requests wait."""
    with EmbeddedRedis(find_server()) as redis:
        times = claim_times_ms(redis.url, waiting=WAITING, limit=CLAIMED, claims=claims)
    return {"median": round(statistics.median(times), 3), "worst": round(max(times), 3)}


def _load(url: str, body: bytes, connections: int) -> Load:
    return Load(url, body, "application/octet-stream", connections, least_answer_bytes=len(body))


# --- what it comes to


def shares(points: Sequence[Point]) -> list[float]:
    """Returns each point's throughput per worker over that of one worker alone."""
    one = points[0].requests_per_s / points[0].workers
    return [point.requests_per_s / point.workers / one for point in points]


def verdicts(
    alone: Mapping[str, float],
    points: Sequence[Point],
    sizes: Mapping[int, float],
    claim: Mapping[str, float],
) -> Iterator[Verdict]:
    """Returns each figure that has a bar."""
    text = f"one client, delay {DELAY_MS} ms, {{policy}}: p50 {{{{}}}}"
    fixed, adaptive = (text.format(policy=policy) for policy in ("fixed", "adaptive"))
    yield at_most(alone["fixed"], DELAY_MS + FIXED_MORE_MS, fixed, "{:.2f} ms")
    yield at_most(alone["adaptive"], ADAPTIVE_MS, adaptive, "{:.2f} ms")
    for point, share in zip(points, shares(points), strict=True):
        yield _judge(point, share)
    fewest = min(sizes)
    for workers, size in sizes.items():
        if workers != fewest:
            text = f"workers {workers}, {RATE_PER_S:.0f} requests/s: batches of {{}}"
            yield at_least(size, LEAST_BATCH_SHARE * sizes[fewest], text, "{:.2f}")
    text = f"claim of {CLAIMED} while {WAITING} wait: {{}}"
    yield at_most(claim["median"], CLAIM_MS, text, "{:.2f} ms")


def _judge(point: Point, share: float) -> Verdict:
    where = f"nodes {point.nodes}, workers {point.workers}: {{}} of linear"
    verdict = at_least(100 * share, 100 * LEAST_SHARE, where, "{:.1f} %")
    if point.errors:
        return Verdict(False, f"{verdict.text}, {point.errors} errors")
    if verdict.is_reached or not point.is_full:
        return verdict
    full = (
        f"a core is full: {point.busiest} {point.busiest_percent:.0f} % of one, "
        f"the machine {point.machine_percent:.0f} %"
    )
    return Verdict(None, f"{verdict.text}; {full}")


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and the tables."""
    points = [Point(**point) for point in record["points"]]
    lines = [
        f"`python -m benchmarks.scaling` at {told(record)}; load average before: "
        f"{record['load_average']}. Batches of {BATCH_SIZE} that nap {NAP_MS} ms, "
        f"{record['seconds']:.0f} s each:",
        "",
        "| nodes | workers | requests/s | of linear | busiest process | machine |",
        "|---|---|---|---|---|---|",
    ]
    for point, share in zip(points, shares(points), strict=True):
        lines.append(
            f"| {point.nodes} | {point.workers} | {point.requests_per_s:.0f} | {100 * share:.1f} % "
            f"| {point.busiest} {point.busiest_percent:.0f} % | {point.machine_percent:.0f} % |"
        )
    sizes = ", ".join(f"{size:.2f} ({workers})" for workers, size in record["batch_sizes"].items())
    lines += [
        "",
        f"Mean batch at {RATE_PER_S:.0f} requests/s and a delay of {DELAY_MS} ms, by the number of "
        f"workers, one of which would do: {sizes}.",
    ]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--seconds", type=positive, default=None, help="of each run")
    parser.add_argument(
        "--short", action="store_true", help="two layouts only; leaves the document as it is"
    )
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or (SHORT_SECONDS if options.short else SECONDS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    options = parse(arguments)
    load_average = round(os.getloadavg()[0], 2)

    def record() -> dict[str, Any]:
        wrk_path()
        seconds = options.seconds
        alone = alone_ms(seconds, 1 if options.short else ROUNDS)
        points = list(throughputs({1: (1, 2)} if options.short else LAYOUTS, seconds))
        workers = IDLE_WORKERS[:2] if options.short else IDLE_WORKERS
        sizes = batch_sizes(workers, RATE_PER_S, seconds)
        claim = claim_ms(CLAIMS)
        about = {
            "seconds": seconds,
            "load_average": load_average,
            "alone_p50_ms": alone,
            "points": [asdict(point) for point in points],
            "batch_sizes": sizes,
            "claim_ms": claim,
        }
        found = list(verdicts(alone, points, sizes, claim))
        return to_record("how cost grows with workers, nodes and the queue", about, found)

    return finish("scaling", record, markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
