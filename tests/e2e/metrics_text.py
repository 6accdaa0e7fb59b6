"""Reads /metrics as a scraper does."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.ferry_process import FerryServer


class Scrape:
    """One answer of /metrics."""

    def __init__(self, server: FerryServer) -> None:
        response = server.http.get(f"{server.metrics}/metrics", timeout=10)
        assert response.status_code == 200
        self._samples = [
            sample
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels; 0 when there are none."""
        return sum(self._values(name, labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self._values(name, labels))

    def samples(self, name: str) -> list[Any]:
        """The samples of this name."""
        return [sample for sample in self._samples if sample.name == name]

    def _values(self, name: str, labels: dict[str, str]) -> Iterator[float]:
        for sample in self._samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample.value
