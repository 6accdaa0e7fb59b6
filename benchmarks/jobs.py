"""What jobs cost the requests beside them, and what they cost themselves.

    python -m benchmarks.jobs

A model whose batches take 20 ms whatever is in them, at a fixed rate of requests, with and without
10,000 jobs behind it; then a store in which ever more jobs wait.
"""

import asyncio
import secrets
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from batching.protocol import Part, Request
from batching.store.jobs.job_records import Job
from batching.store.jobs.job_store import JobRequest, JobStore
from benchmarks.measuring import records
from benchmarks.measuring.load import BINARY, Load, drive
from benchmarks.measuring.records import Verdict, at_least, at_most
from benchmarks.scaling import CLAIMED, KEY, claim_and_reply_ms, lone_store
from benchmarks.servers.running import Torchferry

BATCH_SIZE, HANDLER_MS, DELAY_MS = 16, 20, 5
RATE_PER_S, CONNECTIONS, SUBMITTERS = 200.0, 256, 32
WARM_UP_S = 1.0
# Jobs older than a minute wait among the requests (job_patience): these must be younger.
YOUNG_S = 55.0
# A pause between runs, so that the one before is over, in the ingress too.
SETTLE_S = 1.0
ASYNC = {"content-type": BINARY, "prefer": "respond-async"}

SUBMITTED_AT_ONCE = 512
DAY_MS = 24 * 3600 * 1000

P99_GROWTH, LEAST_SHARE = 1.15, 0.9
CLAIM_MS, LOOK_MS = 1.0, 1.0
# With its body of 1 KiB.
BYTES_PER_JOB = 2_560

Run = Mapping[str, float]


def measure(is_short: bool) -> dict[str, Any]:
    rounds, seconds, jobs, tries = (1, 1, 1_500, 20) if is_short else (5, 10, 10_000, 200)
    runs = list(pairs(rounds, jobs, seconds))
    stores = [waiting(count, tries) for count in (1_000, 10_000, 100_000)[: 1 if is_short else 3]]
    return {
        "measured": "what jobs cost",
        "seconds": seconds,
        "free_seats": runs,
        "waiting": stores,
        "verdicts": list(verdicts(runs, stores)),
    }


# --- the seats that requests leave free


def pairs(rounds: int, jobs: int, seconds: float) -> Iterator[list[Run]]:
    """Yields pairs of runs, neighbours in time: without jobs, and with so many behind."""
    with Torchferry(handler="count") as server:
        for number in range(rounds):
            # Every other pair the other way round, so that a machine that slows down is fair.
            counts = (0, jobs) if number % 2 == 0 else (jobs, 0)
            runs = {one: run_once(server, f"seats{number}x{one}", one, seconds) for one in counts}
            yield [runs[0], runs[jobs]]


def run_once(server: Torchferry, model: str, jobs: int, seconds: float) -> Run:
    """Measures on a model and a worker of its own.

    Raises:
        BenchmarkError: requests were not answered, or jobs were too few or too old.
    """
    asked = {"max_batch_delay": DELAY_MS, "response_timeout": 60, "initial_workers": 0}
    server.register(model, batch_size=BATCH_SIZE, **asked)
    load = Load(server.url_of(model), str(HANDLER_MS).encode(), CONNECTIONS)

    def replied() -> float:
        return server.metrics(model=model, event="replied").get("ferry_queue_events_total", 0.0)

    began_s = time.monotonic()
    asyncio.run(submit_jobs(load, jobs))
    server.manage("PUT", f"models/{model}", min_worker=1, synchronous="true")
    drive(load, WARM_UP_S, RATE_PER_S, is_strict=True)
    # Each time in this order, as jobs are done meanwhile.
    started_s = time.monotonic()
    batches, replied_before = int(server.ask(model, b"0")), replied()
    answers = drive(load, seconds, RATE_PER_S, is_strict=True)
    ended_s = time.monotonic()
    batches = int(server.ask(model, b"0")) - batches
    done = replied() - replied_before - 1  # less the request that asked for the batches
    took_s, answered = ended_s - started_s, len(answers.latencies_s)
    if jobs and ended_s - began_s > YOUNG_S:
        raise records.BenchmarkError(f"jobs became older than {YOUNG_S:.0f} s")
    if jobs and not server.metrics(model=model)["ferry_jobs_waiting"]:
        raise records.BenchmarkError("the jobs were done before the run had ended")
    server.unregister(model)
    time.sleep(SETTLE_S)
    report = answers.report()
    return {
        "jobs": jobs,
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "requests_per_s": round(answered / took_s, 1),
        "jobs_per_s": round((done - answered) / took_s, 1),
        "batches_per_s": round(batches / took_s, 2),
    }


async def submit_jobs(load: Load, count: int) -> None:
    left = iter(range(count))

    async def submit_some(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(load.url, data=load.body, headers=ASYNC) as answer:
                if not answer.ok:
                    raise records.BenchmarkError(f"a job was refused: {answer.status}")

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(submit_some(session) for _ in range(SUBMITTERS)))


# --- a store in which jobs wait


def waiting(jobs: int, tries: int) -> dict[str, float]:
    """Measures at a store of its own, as a worker and an ingress see it; times are medians.

    `look_first_ms` and `look_last_ms` are how long it takes to look at a job and its position, of
    the next one and of the last one that waits.
    """
    with asyncio.Runner() as runner, lone_store(runner) as (client, async_client, worker):
        store = JobStore(async_client, 2 * jobs)
        # What the first of each costs once: scripts, connections, the index.
        runner.run(store_jobs(store, CLAIMED))
        claim_and_reply_ms(worker)

        before_bytes = client.info("memory")["used_memory"]
        job_ids = runner.run(store_jobs(store, jobs))
        after_bytes = client.info("memory")["used_memory"]
        looks_ms: list[float] = []
        for job_id in (job_ids[0], job_ids[-1]):
            times_ms = []
            for _ in range(tries):
                started_s = time.perf_counter()
                runner.run(store.find(job_id))
                times_ms.append(1000 * (time.perf_counter() - started_s))
            looks_ms.append(round(statistics.median(times_ms), 3))
        claims_ms = []
        for _ in range(tries):
            claims_ms.append(claim_and_reply_ms(worker))
            runner.run(store_jobs(store, CLAIMED))
    return {
        "jobs": jobs,
        "claim_ms": round(statistics.median(claims_ms), 3),
        "worst_claim_ms": round(max(claims_ms), 3),
        "look_first_ms": looks_ms[0],
        "look_last_ms": looks_ms[1],
        "bytes_per_job": round((after_bytes - before_bytes) / jobs),
    }


async def store_jobs(store: JobStore, count: int) -> list[str]:
    """Submits so many jobs; returns their ids, roughly in their order."""
    wire = Request({}, [Part("body", "", b"0".ljust(1024))]).to_wire()
    job_ids = [secrets.token_hex(16) for _ in range(count)]
    for first in range(0, count, SUBMITTED_AT_ONCE):
        some = job_ids[first : first + SUBMITTED_AT_ONCE]
        requests = [JobRequest(job_id, wire, DAY_MS, DAY_MS) for job_id in some]
        answers = await asyncio.gather(*(store.submit(KEY, request) for request in requests))
        if not all(isinstance(answer, Job) for answer in answers):
            raise records.BenchmarkError(f"jobs were refused: {answers[0]}")
    return job_ids


# --- what it comes to


def share_of_seats(run: Run) -> float:
    """Returns which share of the seats that requests left free jobs had."""
    free_per_s = BATCH_SIZE * run["batches_per_s"] - run["requests_per_s"]
    return run["jobs_per_s"] / free_per_s


def verdicts(runs: list[list[Run]], stores: list[dict[str, float]]) -> Iterator[Verdict]:
    growth = statistics.median(beside["p99_ms"] / alone["p99_ms"] for alone, beside in runs)
    jobs = runs[0][1]["jobs"]
    text = f"{jobs} jobs behind {RATE_PER_S:.0f} requests/s: p99 of requests {{}} as long"
    yield at_most(growth, P99_GROWTH, text, "{:.2f} x")
    share = statistics.median(share_of_seats(beside) for _, beside in runs)
    text = "free seats that jobs had: {}"
    yield at_least(100 * share, 100 * LEAST_SHARE, text, "{:.1f} %")
    for one in stores:
        where = f"{one['jobs']} jobs wait: "
        yield at_most(one["claim_ms"], CLAIM_MS, f"{where}claim of {CLAIMED} {{}}", "{:.2f} ms")
        look_ms = max(one["look_first_ms"], one["look_last_ms"])
        yield at_most(look_ms, LOOK_MS, f"{where}a look at one {{}}", "{:.2f} ms")
        yield at_most(one["bytes_per_job"], BYTES_PER_JOB, f"{where}each {{}}", "{:.0f} bytes")


def markdown(record: Mapping[str, Any]) -> str:
    rows = [
        (
            *(run["jobs"], f"{run['p50_ms']:.1f} ms", f"{run['p99_ms']:.1f} ms"),
            *(f"{run['requests_per_s']:.0f}", f"{run['jobs_per_s']:.0f}"),
            f"{100 * share_of_seats(run):.0f} %" if run["jobs"] else "",
            f"{run['batches_per_s'] * HANDLER_MS / 10:.0f} %",
        )
        for pair in record["free_seats"]
        for run in pair
    ]
    heads = ("jobs", "p50", "p99", "requests/s", "jobs/s", "of the free seats", "handler at work")
    waiting_rows = [
        (
            one["jobs"],
            "{claim_ms:.2f} ms, {worst_claim_ms:.2f} ms".format(**one),
            *(f"{one[name]:.2f} ms" for name in ("look_first_ms", "look_last_ms")),
            f"{one['bytes_per_job']} bytes",
        )
        for one in record["waiting"]
    ]
    claims = f"claim of {CLAIMED}, worst"
    waiting_heads = ("jobs that wait", claims, "a look at the next", "at the last", "each")
    return (
        f"{RATE_PER_S:.0f} requests/s, batches of {BATCH_SIZE} that take {HANDLER_MS} ms, "
        f"{record['seconds']:.0f} s each; pairs of neighbours in time:\n\n"
        f"{records.table_of(heads, rows)}\n\n{records.table_of(waiting_heads, waiting_rows)}"
    )


if __name__ == "__main__":
    sys.exit(records.main("jobs", measure, markdown))
