"""A real Prometheus that scrapes a server under test, where one is installed."""

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.support import came_true

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus here: apt-get install prometheus"
)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here: apt-get install prometheus"
)

START_TIMEOUT_S = 30.0


class Prometheus:
    """The query API of a running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that the expression has now, as KEDA asks for it.

        Raises:
            ValueError: it is no PromQL.
        """
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/query?{query}", timeout=10) as got:
                result = json.load(got)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from error
        return [(series["metric"], float(series["value"][1])) for series in result]

    def value(self, expression: str) -> float | None:
        """Returns the one value that a scaler gets; None where there is no series."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None


@contextlib.contextmanager
def running_prometheus(
    folder: Path, target: str, labels: Mapping[str, str]
) -> Iterator[Prometheus]:
    """Scrapes `target` every other second, as one that the operator found: with these labels."""
    config = {
        "global": {"scrape_interval": "2s"},
        "scrape_configs": [
            {"job_name": "ferry", "static_configs": [{"targets": [target], "labels": labels}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_ports(3)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        assert came_true(lambda: _is_up(prometheus), START_TIMEOUT_S), "it does not scrape"
        yield prometheus
    finally:
        process.kill()
        process.wait(10)


def _is_up(prometheus: Prometheus) -> bool:
    # While it starts it answers 503.
    with contextlib.suppress(OSError, ValueError):
        return prometheus.value("sum(up)") == 1
    return False
