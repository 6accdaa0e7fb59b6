"""What the dashboard and the rules ask Prometheus for, and which names are in it.

No PromQL engine: names, selectors and groupings are found by their shape. Whether the expressions
are PromQL at all is for Prometheus to say, where there is one.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from tests.deploy.chart import ROOT

DASHBOARD = ROOT / "dashboards/grafana/torchferry.json"
RULES = ROOT / "dashboards/prometheus/torchferry.rules.yml"

# What Prometheus and its operator add to every series.
TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod", "service"})

_SELECTOR = re.compile(r"\b(ferry_[a-z_]+|ts_[a-z_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_OTHER_WORD = re.compile(r"\b([a-z][a-z_]*[a-z])\s*(?=\{)")


@dataclass(frozen=True)
class Selector:
    """A metric as an expression asks for it; `values` are what its labels must be."""

    metric: str
    values: dict[str, list[str]] = field(default_factory=dict)


def selectors(expression: str) -> list[Selector]:
    """Returns the metrics in the expression; alternatives of a regular expression are values."""
    assert set(_OTHER_WORD.findall(expression)) <= {s[0] for s in _SELECTOR.findall(expression)}
    return [
        Selector(
            name, {label: text.split("|") for label, _, text in _MATCHER.findall(matchers or "")}
        )
        for name, matchers in _SELECTOR.findall(expression)
    ]


def groupings(expression: str) -> set[str]:
    """Returns every label that the expression groups by."""
    found = (name.strip() for text in _GROUPING.findall(expression) for name in text.split(","))
    return {name for name in found if name}


def panels() -> list[dict]:
    """Returns the panels of the dashboard, rows left out."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Yields title and expression of everything that the dashboard shows."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def alerts() -> list[dict]:
    """Returns the alert rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def all_expressions() -> list[tuple[str, str]]:
    """Returns name and expression of every panel and alert."""
    return [*panel_expressions(), *((rule["alert"], rule["expr"]) for rule in alerts())]
