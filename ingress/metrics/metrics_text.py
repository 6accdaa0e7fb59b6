"""Prometheus text as TorchServe writes it: old format, with a comma before the closing brace.

Source: TorchServe 0.12 (simpleclient_common `TextFormat.write004`).
"""

import math
from collections.abc import Collection, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def write_text(families: Iterable[Metric], names: Collection[str] = ()) -> bytes:
    """Returns the families, or only those with one of these names."""
    lines: list[str] = []
    for family in families:
        samples = family.samples
        name = samples[0].name if family.type == "counter" and samples else family.name
        if not names or name in names:
            lines += _family_lines(name, family, samples)
    # A client's label may hold half a character, which costs the character and not the scrape.
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
