"""What a run comes to: throughput, percentiles, errors, batch sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measuring.driver import Outcome

BATCH_METRIC = "ferry_batch_size"
_METRICS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class BatchCount:
    """How many batches a model has run since its server started, and of how many requests."""

    batches: float
    requests: float

    def since(self, earlier: "BatchCount") -> float | None:
        """Returns the requests per batch since then; None when there was no batch."""
        batches = self.batches - earlier.batches
        return (self.requests - earlier.requests) / batches if batches > 0 else None


@dataclass(frozen=True, slots=True)
class Failure:
    """How many requests had this status, and the text of the first. Status 0: no answer."""

    status: int
    count: int
    text: str

    @property
    def kind(self) -> str:
        """Returns the status in words."""
        return str(self.status) if self.status else "no answer"


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds the figures of one run. `errors` are 4xx and 5xx answers, and requests without one.

    `mean_batch` is None where the server does not tell. Percentiles are of successes, in ms.
    """

    requests: int
    errors: int
    requests_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_batch: float | None = None
    failures: tuple[Failure, ...] = ()


def figures(outcome: Outcome, mean_batch: float | None = None) -> Figures:
    """Computes the figures of an outcome; percentiles are 0 when nothing succeeded."""
    latencies = sorted(outcome.latencies_s)
    total = outcome.statuses.total()
    p50, p95, p99 = (1000 * percentile(latencies, share) for share in (0.5, 0.95, 0.99))
    return Figures(
        requests=total,
        errors=total - len(latencies),
        requests_per_s=outcome.done / outcome.seconds if outcome.seconds else 0.0,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        mean_batch=mean_batch,
        failures=tuple(
            Failure(status, outcome.statuses[status], text)
            for status, text in sorted(outcome.reasons.items())
        ),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of the ordered values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def batch_count(metrics_url: str, model_name: str) -> BatchCount | None:
    """Reads a model's batches from /metrics; None when the page has no such metric."""
    try:
        # Past any proxy, as the load itself.
        answer = httpx.get(metrics_url, timeout=_METRICS_TIMEOUT_S, trust_env=False)
        text = answer.raise_for_status().text
        families = [one for one in text_string_to_metric_families(text) if one.name == BATCH_METRIC]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # or something other than metrics
        return None
    if not families:
        return None

    def total(suffix: str) -> float:
        name, samples = f"{BATCH_METRIC}_{suffix}", families[0].samples
        return sum(s.value for s in samples if s.name == name and s.labels["model"] == model_name)

    return BatchCount(batches=total("count"), requests=total("sum"))
