"""Draws panels of the dashboard, under load: `make screenshots`. Needs Prometheus.

Writes docs/images/dashboard.png: what Prometheus answered to the panels' own queries. The drawing
is matplotlib's, not Grafana's.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import requests
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.measuring.records import ROOT
from benchmarks.page_picture import IMAGES, serving, tell_size, under_load
from benchmarks.servers import child
from benchmarks.summary import INK

DASHBOARD = ROOT / "dashboards" / "grafana" / "torchferry.json"
# In rows of three.
PANELS = (
    *("Answers by status", "Whole request", "Average batch size"),
    *("Waiting in the queue", "In the handler", "Busy workers"),
)
# Rates are those of so many seconds; what is older than the load is not drawn.
RATE_S, WAVE_S, LOAD_S = 10, 25.0, 75.0
START_S = 30.0
# Unit of a panel: how it is written, and its values' factor.
UNITS = {"reqps": ("/s", 1), "s": ("ms", 1000), "short": ("", 1), "percentunit": ("%", 100)}
COLORS = ("#0f9488", "#2563eb", "#c2700a")


class Series(NamedTuple):
    """One line of a panel: its name in the legend, and (time, value) pairs."""

    legend: str
    values: list[tuple[float, float]]


class Prometheus:
    """A Prometheus of its own, which scrapes one server each second."""

    def __init__(self, program: str, folder: Path, target: str) -> None:
        scrape = {"job_name": "ferry", "static_configs": [{"targets": [target]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        [port] = child.free_ports(1)
        self._url = child.local(port)
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._child = child.Child(command, child.inherited_environment(), folder)

    def __enter__(self) -> "Prometheus":
        self._child.start()
        end_s = time.monotonic() + START_S
        while not self._is_scraping():
            if time.monotonic() > end_s:
                self._child.stop()
                raise SystemExit(f"Prometheus scrapes nothing:\n{self._child.log_tail()}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def _is_scraping(self) -> bool:
        try:
            return bool(self._ask("query", query="ferry_redis_up == 1"))
        except requests.RequestException:
            return False

    def series(self, target: Mapping[str, Any], start_s: float, end_s: float) -> list[Series]:
        """Returns what one query of a panel has between two times, as Grafana would ask for it."""
        expression = target["expr"].replace("$job", "ferry").replace("$model", ".*")
        expression = expression.replace("$__rate_interval", f"{RATE_S}s")
        found = self._ask("query_range", query=expression, start=start_s, end=end_s, step=1)
        lines = []
        for one in found:
            legend = target["legendFormat"]
            for label, value in one["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            lines.append(Series(legend, [(at, float(value)) for at, value in one["values"]]))
        return lines

    def _ask(self, kind: str, **parameters: str | float) -> list[dict[str, Any]]:
        answer = requests.get(f"{self._url}/api/v1/{kind}", params=parameters, timeout=10)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found


def measure(program: str) -> dict[str, list[Series]]:
    """Returns what Prometheus has for each panel, from a server under load."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as url:
        folder = Path(name) / "prometheus"
        folder.mkdir()
        host, _, port = url.removeprefix("http://").partition(":")
        with Prometheus(program, folder, f"{host}:{int(port) + 2}") as prometheus:
            with under_load(url, WAVE_S):
                time.sleep(RATE_S)
                start_s = time.time()  # noqa: TID251 - Prometheus' own clock
                time.sleep(LOAD_S)
            return {
                title: [
                    series
                    for target in panel(title)["targets"]
                    for series in prometheus.series(target, start_s, start_s + LOAD_S)
                ]
                for title in PANELS
            }


def panel(title: str) -> dict[str, Any]:
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found: dict[str, Any]
    [found] = [one for one in document["panels"] if one["title"] == title]
    return found


def draw(axes: Axes, title: str, lines: list[Series]) -> None:
    """Draws a panel: its lines by seconds."""
    unit, factor = UNITS[panel(title)["fieldConfig"]["defaults"]["unit"]]
    begin_s = min(line.values[0][0] for line in lines)
    for line, color in zip(lines, COLORS, strict=False):
        at = [time_s - begin_s for time_s, _ in line.values]
        axes.plot(at, [factor * value for _, value in line.values], color=color, label=line.legend)
    axes.set_title(f"{title}, {unit}" if unit else title, loc="left", fontsize=10, color=INK)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelcolor=INK, color=INK, labelsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3, fontsize=8, frameon=False)


def main() -> None:
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("there is no prometheus: apt-get install prometheus")
    measured = measure(program)
    figure = Figure(figsize=(12, 5.6), layout="constrained", facecolor="white")
    for axes, (title, lines) in zip(figure.subplots(2, 3).flat, measured.items(), strict=True):
        draw(axes, title, lines)
    path = IMAGES / "dashboard.png"
    figure.savefig(path, dpi=100)
    tell_size(path)


if __name__ == "__main__":
    sys.exit(main())
