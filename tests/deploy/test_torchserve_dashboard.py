"""A Grafana dashboard that was made for TorchServe 0.12 draws the same of this server."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.servers.prometheus import Prometheus
from tests.deploy.chart import ROOT, needs_prometheus
from tests.support import eventually

DASHBOARD = Path(__file__).with_name("torchserve_dashboard.json")
RECORDED = ROOT / "tests/conformance/recordings/main/metrics.json"

SAMPLE = re.compile(r"^(\w+)\{(.*)\} \S+$")
LABEL = re.compile(r'(\w+)="')
MATCHERS = re.compile(r"(\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
# All of PromQL that the dashboard uses.
FUNCTIONS = {"sum", "avg", "max", "rate", "avg_over_time", "by"}


def recorded_metrics() -> dict[str, set[str]]:
    """Returns metric -> labels, as TorchServe's /metrics had them."""
    cases = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]
    return metrics_of(cases["metrics-all"]["answers"][0]["body"])


def metrics_of(lines: list[str]) -> dict[str, set[str]]:
    """Returns metric -> labels; without labels where a metric has no samples."""
    found = {line.split()[2]: set() for line in lines if line.startswith("# TYPE")}
    for match in filter(None, map(SAMPLE.match, lines)):
        found.setdefault(match[1], set()).update(LABEL.findall(match[2]))
    return found


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def asked(expression: str) -> set[str]:
    """Returns the metrics that an expression asks for."""
    bare = re.sub(r"\{[^}]*\}|\[\w+\]|\bby \([^)]*\)", " ", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare)) - FUNCTIONS


def labels_used(expression: str) -> set[str]:
    matchers = [text for _, text in MATCHERS.findall(expression)]
    named = {name for text in matchers for name in re.findall(r"(\w+)=", text)}
    return named | {
        name.strip() for text in GROUPING.findall(expression) for name in text.split(",")
    }


@pytest.fixture(scope="module")
def shown(server, exported) -> dict[str, set[str]]:
    """Returns metric -> labels of this server after traffic; a node measures its host at times."""
    assert exported.labels

    def lines() -> list[str]:
        text = server.http.get(f"{server.metrics}/metrics", timeout=10).text
        return text.splitlines() if "\nCPUUtilization{" in text else []

    return metrics_of(eventually(lines, 20))


def test_dashboard_asks_for_every_metric_of_torchserve():
    assert {name for text in expressions() for name in asked(text)} == set(recorded_metrics())


@pytest.mark.slow
@pytest.mark.parametrize("expression", expressions())
def test_old_query_finds_what_it_asks_for(expression, shown):
    # Given what TorchServe's own series are called
    recorded = recorded_metrics()
    for name in asked(expression):
        # Then this server has that metric, and with samples also its labels, no more and no fewer
        assert name in shown
        if shown[name] and recorded[name]:
            assert shown[name] == recorded[name]
    # And the labels of the query are among them
    known = set().union(*(shown[name] | recorded[name] for name in asked(expression)))
    assert labels_used(expression) <= known | {"Level", "Hostname"}


@needs_prometheus
@pytest.mark.slow
def test_old_dashboard_draws(server, shown, tmp_path):
    assert shown
    target = server.metrics.removeprefix("http://")
    with Prometheus(tmp_path, target, {"job": "torchserve"}) as prometheus:
        # Given a Prometheus that has seen the traffic
        eventually(lambda: prometheus.query("ts_inference_requests_total"), 10)
        for expression in expressions():
            # When it is asked as Grafana asks, for all models and hosts
            found = prometheus.query(re.sub(r"\$(model|host)", ".*", expression))
            # Then it understands, and what this machine and model have is drawn
            has_samples = all(shown[name] for name in asked(expression))
            if has_samples and "rate(" not in expression:
                assert found, expression
