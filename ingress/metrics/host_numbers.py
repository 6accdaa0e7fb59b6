"""Adds up the numbers of a host's ingress processes, whichever of them is scraped.

Each process writes its numbers into a file when a sibling is scraped, and a restarted process
continues with its predecessor's. So no sum falls when a process dies, which a scraper would take
for a restart of all: only what a killed process counted after the last scrape is missing.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from batching.process.siblings import Siblings
from batching.settings.files import write_atomically
from ingress.metrics.ingress_metrics import LAST_VALUES


class HostNumbers:
    """Collects the numbers of this process, or of all processes that share its ports."""

    def __init__(self, own: Callable[[], Iterable[Metric]], siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings
        self._before: list[Metric] = []
        self._server: asyncio.Server | None = None
        # Of two scrapes at a time, the one with older numbers must not write last.
        self._is_writing = threading.Lock()

    async def start(self) -> None:
        if self._siblings.count > 1:
            self._before = self._read(self._siblings.number, is_alive=False)
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
            families += self._read(number, is_alive=number in answered)
        meaning = "Ingress processes of this host; the last numbers of silent ones may be old."
        processes = GaugeMetricFamily("ferry_ingress_processes", meaning, labels=("state",))
        processes.add_metric(("answering",), 1 + len(answered))
        processes.add_metric(("silent",), len(self._siblings.others) - len(answered))
        return [*_added_up(families), processes]

    def _write(self) -> list[Metric]:
        with self._is_writing:
            families = _added_up([*self._own(), *self._before])
            document = [
                (it.name, it.documentation, it.type, [sample[:3] for sample in it.samples])
                for it in families
            ]
            with contextlib.suppress(OSError):  # a full disk; the file keeps its last numbers
                write_atomically(self._file(self._siblings.number), json.dumps(document))
            return families

    def _read(self, number: int, *, is_alive: bool) -> list[Metric]:
        """Returns the families in this process's file; without gauges unless it `is_alive`."""
        try:
            document = json.loads(self._file(number).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        families = []
        for name, documentation, kind, samples in document:
            if is_alive or kind != "gauge":
                family = Metric(name, documentation, kind)
                for sample in samples:
                    family.add_sample(*sample)
                families.append(family)
        return families

    def _file(self, number: int) -> Path:
        return self._siblings.folder / f"{number}.json"


def _added_up(families: Iterable[Metric]) -> list[Metric]:
    """Returns one family per name: sums, and the first of TorchServe's last values."""
    totals: dict[str, Metric] = {}
    for family in families:
        empty = Metric(family.name, family.documentation, family.type)
        total = totals.setdefault(family.name, empty)
        values = {(it.name, tuple(it.labels.items())): it.value for it in total.samples}
        for name, labels, value, *_ in family.samples:
            key = name, tuple(labels.items())
            if key not in values or family.name not in LAST_VALUES:
                values[key] = values.get(key, 0) + value
        total.samples = []
        for (name, pairs), value in values.items():
            total.add_sample(name, dict(pairs), value)
    return list(totals.values())
