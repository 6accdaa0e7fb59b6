"""Prometheus finds every ingress."""

import pytest

from tests.support import came_true

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]


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
