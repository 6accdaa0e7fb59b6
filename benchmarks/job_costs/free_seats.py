"""What jobs take of the seats that requests leave free, and what accepting one costs."""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measuring import driver
from benchmarks.measuring.figures import figures
from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.processors import processor_s
from benchmarks.servers.fleet import Fleet

HANDLER = Path(__file__).with_name("seats_handler.py")
BATCH_SIZE, HANDLER_MS, DELAY_MS = 16, 20, 5
RATE_PER_S, CONNECTIONS, SUBMITTERS = 200.0, 256, 32
WARMUP_S = 1.0
# Jobs older than a minute wait among the requests (job_patience): these must be younger.
YOUNG_S = 55.0
# A pause between runs, so that the one before is over, in the ingress too.
SETTLE_S = 1.0
BODY_BYTES = 1024
TYPE = {"content-type": "application/octet-stream"}
ASYNC = {**TYPE, "prefer": "respond-async"}
_SUCCESSES = range(200, 300)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of requests, beside jobs or not."""

    jobs: int
    p50_ms: float
    p99_ms: float
    requests_per_s: float
    jobs_per_s: float
    batches_per_s: float

    @property
    def seats_per_s(self) -> float:
        """Returns the seats that requests left free in the batches that were run."""
        return BATCH_SIZE * self.batches_per_s - self.requests_per_s

    @property
    def share(self) -> float:
        """Returns which share of the free seats jobs had."""
        return self.jobs_per_s / self.seats_per_s

    @property
    def busy_share(self) -> float:
        """Returns for which share of the time the handler was at work."""
        return self.batches_per_s * HANDLER_MS / 1000


def pairs(rounds: int, jobs: int, seconds: float) -> Iterator[tuple[Run, Run]]:
    """Yields pairs of runs, neighbours in time: without jobs, and with so many behind."""
    with Fleet(handler=HANDLER) as fleet:
        for number in range(rounds):
            # Every other pair the other way round, so that a machine that slows down is fair.
            counts = (0, jobs) if number % 2 == 0 else (jobs, 0)
            runs = {
                count: _run(fleet, f"seats{number}x{count}", count, seconds) for count in counts
            }
            yield runs[0], runs[jobs]


def _run(fleet: Fleet, model: str, jobs: int, seconds: float) -> Run:
    """Measures on a model and a worker of its own.

    Raises:
        BenchmarkError: requests were not answered, or jobs were too few or too old.
    """
    fleet.register(
        model,
        batch_size=BATCH_SIZE,
        max_batch_delay=DELAY_MS,
        initial_workers=0,
        response_timeout=60,
    )
    body = str(HANDLER_MS).encode()
    began_s = time.monotonic()
    if jobs:
        asyncio.run(_submit(fleet.url(model), body, jobs))
    fleet.scale(model, 1)
    _drive(fleet.url(model), body, WARMUP_S)
    # Each time in this order, as jobs are done meanwhile.
    started_s = time.monotonic()
    batches, replied = _batches(fleet, model), _replied(fleet, model)
    outcome = _drive(fleet.url(model), body, seconds)
    ended_s = time.monotonic()
    batches = _batches(fleet, model) - batches
    done = _replied(fleet, model) - replied - 1  # less the request that asked for the batches
    took_s = ended_s - started_s
    answered = len(outcome.latencies_s)
    if jobs and ended_s - began_s > YOUNG_S:
        raise BenchmarkError(f"jobs became older than {YOUNG_S:.0f} s: fewer jobs, or seconds")
    if jobs and not _waiting(fleet, model):
        raise BenchmarkError("the jobs were done before the run had ended: more jobs")
    fleet.unregister(model)
    time.sleep(SETTLE_S)
    found = figures(outcome)
    return Run(
        jobs=jobs,
        p50_ms=round(found.p50_ms, 2),
        p99_ms=round(found.p99_ms, 2),
        requests_per_s=round(answered / took_s, 1),
        jobs_per_s=round((done - answered) / took_s, 1),
        batches_per_s=round(batches / took_s, 2),
    )


def accept_us(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measures the ingress's processor time for a request and for accepting a job, in turns.

    A request's includes its answer; a job's includes neither polls nor its result.
    """
    body = b"0".ljust(BODY_BYTES)
    found: dict[str, list[float]] = {"request": [], "job": []}
    with Fleet(handler=HANDLER) as fleet:
        (ingress,) = fleet.processes()["ingress"]
        for number in range(rounds + 1):
            for kind, headers in (("request", TYPE), ("job", ASYNC)):
                model = f"{kind}{number}"
                fleet.register(model, batch_size=BATCH_SIZE, max_batch_delay=0)
                before_s = processor_s(ingress)
                outcome = _drive(fleet.url(model), body, seconds, headers, rate_per_s=0.0)
                used_s = processor_s(ingress) - before_s
                fleet.unregister(model)
                time.sleep(SETTLE_S)
                if number:  # the first round runs much for the first time
                    found[kind].append(round(1e6 * used_s / len(outcome.latencies_s), 1))
    return found


def _drive(
    url: str,
    body: bytes,
    seconds: float,
    headers: dict[str, str] = TYPE,
    rate_per_s: float = RATE_PER_S,
) -> driver.Outcome:
    load = driver.Load(
        url=url,
        body=body,
        headers=headers,
        connections=CONNECTIONS if rate_per_s else SUBMITTERS,
        rate_per_s=rate_per_s,
        duration_s=seconds,
        warmup_s=0.0,
    )
    outcome = driver.drive(load)
    if len(outcome.latencies_s) < outcome.statuses.total() or not outcome.latencies_s:
        raise BenchmarkError(f"not all were answered: {dict(outcome.statuses)} {outcome.reasons}")
    return outcome


async def _submit(url: str, body: bytes, count: int) -> None:
    """Submits so many jobs."""
    left = iter(range(count))

    async def submit_some(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(url, data=body, headers=ASYNC) as answer:
                if answer.status not in _SUCCESSES:
                    raise BenchmarkError(f"a job was refused: {answer.status}")

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(submit_some(session) for _ in range(SUBMITTERS)))


def _replied(fleet: Fleet, model: str) -> int:
    return int(_sample(fleet, "ferry_queue_events_total", model, event="replied"))


def _batches(fleet: Fleet, model: str) -> int:
    """Asks the model's worker how many batches it has had."""
    answer = httpx.post(fleet.url(model), content=b"0", headers=TYPE, trust_env=False, timeout=10.0)
    return int(answer.raise_for_status().text)


def _waiting(fleet: Fleet, model: str) -> int:
    return int(_sample(fleet, "ferry_jobs_waiting", model))


def _sample(fleet: Fleet, name: str, model: str, **labels: str) -> float:
    text = httpx.get(fleet.metrics_url, trust_env=False, timeout=10.0).raise_for_status().text
    wanted = {"model": model, **labels}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and wanted.items() <= sample.labels.items():
                return sample.value
    raise BenchmarkError(f"/metrics lacks {name} of {model}")


def median_of_pairs(found: Sequence[tuple[Run, Run]]) -> dict[str, float]:
    """Returns the medians over the pairs: how p99 grew, and the share of the free seats."""
    return {
        "p99_growth": round(statistics.median(b.p99_ms / a.p99_ms for a, b in found), 3),
        "share": round(statistics.median(b.share for _, b in found), 3),
    }
