"""Adds up what the ingress processes of a host have counted, whichever of them is scraped.

Each process writes its numbers into a file when a sibling is scraped, and a process that is started
again takes up those of the one before it. So no sum falls when a process dies, which a scraper
would take for a restart of all: only what a killed process counted after the last scrape is
missing.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from batching.process.siblings import Siblings
from batching.settings.files import write_atomically
from ingress.metrics.torchserve_metrics import LAST_VALUES

# A sample's name and labels.
_Key = tuple[str, tuple[tuple[str, str], ...]]


class HostNumbers:
    """Collects the numbers of this process, or of all processes that share its ports."""

    def __init__(self, own: Callable[[], Iterable[Metric]], siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings
        self._before: list[Metric] = []
        self._server: asyncio.Server | None = None
        # Of two scrapes at once, the older numbers must not be written last.
        self._is_writing = threading.Lock()

    async def start(self) -> None:
        if self._siblings.count > 1:
            self._before = list(_without_gauges(self._read(self._siblings.number)))
            self._server = await self._siblings.listen(self._write)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def collect(self) -> list[Metric]:
        """Returns the families with the sums over all processes. Blocks."""
        if self._siblings.count == 1:
            return list(self._own())
        answered = self._siblings.ask()
        families = self._write()
        for number in self._siblings.others:
            told = self._read(number)
            # Of a process that is dead or stuck, what it has counted stays true.
            families += told if number in answered else _without_gauges(told)
        text = "Ingress processes of this host; the last numbers of silent ones may be old."
        processes = GaugeMetricFamily("ferry_ingress_processes", text, labels=("state",))
        processes.add_metric(("answering",), 1 + len(answered))
        processes.add_metric(("silent",), len(self._siblings.others) - len(answered))
        return [*_added_up(families), processes]

    def _write(self) -> list[Metric]:
        """Writes this process's families into its file, and returns them."""
        with self._is_writing:
            families = _added_up([*self._own(), *self._before])
            document = [
                (one.name, one.documentation, one.type, [sample[:3] for sample in one.samples])
                for one in families
            ]
            with contextlib.suppress(OSError):  # a full disk; the file keeps its last numbers
                write_atomically(self._file(self._siblings.number), json.dumps(document))
            return families

    def _read(self, number: int) -> list[Metric]:
        """Returns what the process of this number has written last."""
        try:
            text = self._file(number).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        families = []
        for name, documentation, kind, samples in json.loads(text):
            family = Metric(name, documentation, kind)
            for sample in samples:
                family.add_sample(*sample)
            families.append(family)
        return families

    def _file(self, number: int) -> Path:
        return self._siblings.folder / f"{number}.json"


def _without_gauges(families: Iterable[Metric]) -> Iterator[Metric]:
    return (family for family in families if family.type != "gauge")


def _added_up(families: Iterable[Metric]) -> list[Metric]:
    """Returns one family per name: sums, and the first of TorchServe's last values."""
    totals: dict[str, tuple[Metric, dict[_Key, float]]] = {}
    for family in families:
        empty = Metric(family.name, family.documentation, family.type)
        _, values = totals.setdefault(family.name, (empty, {}))
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.items())
            if key not in values or family.name not in LAST_VALUES:
                values[key] = values.get(key, 0) + sample.value
    for total, values in totals.values():
        for (name, labels), value in values.items():
            total.add_sample(name, dict(labels), value)
    return [total for total, _ in totals.values()]
