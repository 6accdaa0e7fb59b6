"""Answers the metrics port's route, in the Prometheus text that TorchServe writes.

It is the old format, with a comma before the closing brace.
Source: TorchServe 0.12 (simpleclient_common `TextFormat.write004`), docs/metrics.md "Metrics mode".
"""

from collections.abc import Collection, Iterable
from functools import partial

from flask import request
from prometheus_client.core import Metric

from batching.metrics import read_metrics_config
from batching.store.registry.registry import read_metrics
from ingress.http1.exchange import HttpAnswer
from ingress.metrics.ingress_metrics import LEGACY
from ingress.metrics.queue_metrics import handler_families, node_families, queue_families
from ingress.services import Services
from ingress.torchserve.answers import typed_answer

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsView:
    """Shows the metrics that `metrics_mode` asks for."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._declared = read_metrics_config(services.settings.metrics_config)

    def metrics(self) -> HttpAnswer:
        services, mode = self._services, self._services.settings.metrics_mode
        families = [] if mode == "log" else services.numbers.collect()
        if mode == "legacy":
            families = [family for family in families if family.name in LEGACY]
        elif mode != "log":
            registry, client = services.probe_registry, services.probe_client
            families += [*node_families(registry), *queue_families(registry)]
            families += handler_families(registry, partial(read_metrics, client), self._declared)
        return typed_answer(write_text(families, request.args.getlist("name[]")), _CONTENT_TYPE)


def write_text(families: Iterable[Metric], names: Collection[str] = ()) -> bytes:
    """Returns the text of the families, or only of the ones with these names."""
    lines: list[str] = []
    for family in families:
        samples = family.samples
        name = samples[0].name if family.type == "counter" and samples else family.name
        if names and name not in names:
            continue
        text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {family.type}"]
        for sample in samples:
            labels = "".join(f'{key}="{_escaped(value)}",' for key, value in sample.labels.items())
            braces = f"{{{labels}}}" if labels else ""
            lines.append(f"{sample.name}{braces} {float(sample.value)!r}")
    # A client's label may hold half a surrogate pair, which must not fail the scrape.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
