"""Answers the metrics port's route, in the Prometheus text that TorchServe writes.

It is the old format, with a comma before the closing brace.
Source: TorchServe 0.12 (simpleclient_common `TextFormat.write004`), docs/metrics.md "Metrics mode".
"""

import math
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from flask import request
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

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
        body = write_text(self._shown(), request.args.getlist("name[]"))
        return typed_answer(body, _CONTENT_TYPE)

    def _shown(self) -> list[Metric]:
        services = self._services
        mode = services.settings.metrics_mode
        if mode == "log":
            return []
        counted = services.numbers.collect()
        if mode == "legacy":
            return [family for family in counted if family.name in LEGACY]
        registry, client = services.probe_registry, services.probe_client
        handlers = handler_families(registry, partial(read_metrics, client), self._declared)
        return [*counted, *node_families(registry), *queue_families(registry), *handlers]


def write_text(families: Iterable[Metric], names: Collection[str] = ()) -> bytes:
    """Returns the text of the families, or only of the ones with these names."""
    lines: list[str] = []
    for family in families:
        samples = family.samples
        name = samples[0].name if family.type == "counter" and samples else family.name
        if not names or name in names:
            lines += _family_lines(name, family, samples)
    # A client's label may hold half a surrogate pair, which must not fail the scrape.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _family_lines(name: str, family: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {family.type}"
    for sample in samples:
        labels = "".join(f'{key}="{_escaped(value)}",' for key, value in sample.labels.items())
        braces = f"{{{labels}}}" if labels else ""
        yield f"{sample.name}{braces} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
