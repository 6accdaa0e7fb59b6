"""`ferry up` with one model, whose metrics and workers can be looked at."""

from collections.abc import Mapping
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.servers.archive_servers import Torchferry
from benchmarks.servers.server import Job

_TIMEOUT_S = 10.0


class MeasuredFerry(Torchferry):
    """Shows what handlers measure."""

    def __init__(self, job: Job, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(job)
        self._more = {"FERRY_MODEL_METRICS_AUTO_DETECT": "true", **(environment or {})}

    def totals(self) -> dict[str, float]:
        """Reads /metrics: sums over all labels, by the names of samples."""
        answer = httpx.get(f"{self._address(2)}/metrics", trust_env=False, timeout=_TIMEOUT_S)
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.raise_for_status().text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                totals[name] = totals.get(name, 0.0) + sample.value
        return totals

    def worker_pids(self) -> list[int]:
        """Returns the processes of the model's workers."""
        url = f"{self._address(1)}/models/{self._jobs[0].model_name}"
        (model,) = httpx.get(url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().json()
        return [worker["pid"] for worker in model["workers"]]

    def _environment(self, folder: Path) -> dict[str, str]:
        return super()._environment(folder) | self._more
