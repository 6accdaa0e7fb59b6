"""A Prometheus of its own, which scrapes one server."""

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import requests

from benchmarks.measuring.records import BenchmarkError
from benchmarks.servers.child import Child, free_ports, inherited_environment, local

PROMETHEUS = shutil.which("prometheus")
START_S = 30.0


class Prometheus:
    """Scrapes `target`, HOST:PORT, during the with block; every series has these labels, too.

    A scrape may take no longer than the interval: while Redis is away, /metrics takes a second.
    """

    def __init__(
        self, folder: Path, target: str, labels: Mapping[str, str], interval_s: int = 2
    ) -> None:
        found = {"targets": [target], "labels": dict(labels)}
        config = {
            "global": {"scrape_interval": f"{interval_s}s"},
            "scrape_configs": [{"job_name": "ferry", "static_configs": [found]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        [port] = free_ports(1)
        self._url = local(port)
        command = [
            str(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._child = Child(command, inherited_environment(), folder)

    def __enter__(self) -> Self:
        self._child.start()
        end_s = time.monotonic() + START_S
        while not self._is_scraping():
            if time.monotonic() > end_s:
                self._child.stop()
                raise BenchmarkError(f"Prometheus scrapes nothing:\n{self._child.log_tail()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def ask(self, kind: str, query: str, **parameters: float) -> list[dict[str, Any]]:
        """Returns the series of a `query`, or `query_range`.

        Raises:
            BenchmarkError: it is no PromQL.
        """
        asked = {"query": query, **parameters}
        answer = requests.get(f"{self._url}/api/v1/{kind}", params=asked, timeout=10)
        if not answer.ok:
            raise BenchmarkError(answer.text)
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each series that the expression has now."""
        found = self.ask("query", expression)
        return [(series["metric"], float(series["value"][1])) for series in found]

    def value(self, expression: str) -> float | None:
        """Returns the one value that a scaler gets; None where there is no series."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def _is_scraping(self) -> bool:
        # While it starts it answers 503.
        with contextlib.suppress(requests.RequestException, BenchmarkError):
            return self.value("sum(up)") == 1
        return False
