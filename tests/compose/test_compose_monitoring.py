"""Prometheus finds every ingress and answers what the dashboards ask."""

import json
import re

import pytest

from tests.chaos.crowd import Crowd
from tests.compose.stack import ROOT
from tests.support import came_true

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

# As Grafana fills them in.
VALUES = {"$__rate_interval": "30s", "$job": "ferry", "$model": ".+"}
VARIABLE = re.compile(r"\$\w+")


@pytest.fixture(scope="module")
def prometheus(balanced):
    """Asks Prometheus' API; it looks after two ingresses and two workers."""
    words = ["--profile", "balanced", "--profile", "monitoring", "up", "-d", "--scale", "ingress=2"]
    balanced.compose(*words, "--scale", "worker=2", "prometheus", "balancer")
    balanced.wait_healthy()

    def ask(path, **parameters):
        url = f"http://127.0.0.1:{balanced.prometheus_port}/api/v1/{path}"
        answer = balanced.http.get(url, params=parameters, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    assert came_true(lambda: healthy(ask("targets")) >= 3, 60), ask("targets")
    return ask


def healthy(targets):
    return sum(target["health"] == "up" for target in targets["activeTargets"])


def expressions(panels):
    for panel in panels:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
        yield from expressions(panel.get("panels", []))


def dashboard_queries():
    for path in sorted((ROOT / "dashboards" / "grafana").glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for title, expression in expressions(dashboard["panels"]):
            yield title, VARIABLE.sub(lambda found: VALUES[found[0]], expression)


def test_prometheus_scrapes_every_ingress(balanced, prometheus):
    # When
    targets = prometheus("targets")["activeTargets"]
    # Then
    assert {target["health"] for target in targets} == {"up"}
    assert sorted(target["labels"]["job"] for target in targets) == ["ferry", "ferry", "prometheus"]


def test_containers_of_the_profiles_are_confined_too(balanced, prometheus):
    # When
    containers = {container.service: container for container in balanced.containers()}
    # Then
    assert {"balancer", "prometheus"} <= containers.keys()
    assert [name for name, one in containers.items() if not one.is_confined] == []


def test_dashboards_are_filled_after_load(balanced, prometheus):
    # Given answers, and refusals
    balanced.serve("watched", pause_ms=20)
    balanced.serve("unmanned", initial_workers=0)
    queries = list(dashboard_queries())
    with (
        Crowd(balanced.port) as crowd,
        crowd.flow("watched", 20, "watch"),
        crowd.flow("unmanned", 5, "refused"),
    ):
        # When
        def empty():
            return [
                (title, expression)
                for title, expression in queries
                if not prometheus("query", query=expression)["result"]
            ]

        # Then
        assert len(queries) > 10
        assert came_true(lambda: not empty(), 60), empty()
