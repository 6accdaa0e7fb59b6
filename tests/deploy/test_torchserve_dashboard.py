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
TYPE = re.compile(r"^# TYPE (\w+)", re.MULTILINE)
# All of PromQL that the dashboard uses.
FUNCTIONS = {"sum", "avg", "max", "rate", "avg_over_time", "by"}
PANELS = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def asked(expression):
    """Returns the metrics that an expression asks for."""
    bare = re.sub(r"\{[^}]*\}|\[\w+\]|\bby \([^)]*\)", " ", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare)) - FUNCTIONS


def test_dashboard_asks_for_every_metric_of_torchserve():
    cases = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]
    recorded = "\n".join(cases["metrics-all"]["answers"][0]["body"])
    assert set().union(*map(asked, EXPRESSIONS)) == set(TYPE.findall(recorded))


@needs_prometheus
@pytest.mark.slow
def test_old_dashboard_draws(server, exported, tmp_path):
    # Given a Prometheus that has seen traffic, and what a node measures of its host at times
    assert exported.labels
    target = server.metrics.removeprefix("http://")
    with Prometheus(tmp_path, target, {"job": "torchserve"}) as prometheus:
        eventually(lambda: prometheus.query("CPUUtilization"), 20)
        eventually(lambda: prometheus.query("ts_inference_requests_total"), 10)
        text = server.http.get(f"{server.metrics}/metrics", timeout=10).text
        for expression in EXPRESSIONS:
            # When it is asked as Grafana asks, for all models and hosts
            found = prometheus.query(re.sub(r"\$(model|host)", ".*", expression))
            # Then it understands, and what this machine and model have is drawn
            assert asked(expression) <= set(TYPE.findall(text)), expression
            has_samples = all(f"\n{name}{{" in text for name in asked(expression))
            if has_samples and "rate(" not in expression:
                assert found, expression
