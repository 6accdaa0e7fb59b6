"""The examples keep what is accepted: Redis writes it down, and nodes come for it."""

import re

import pytest
import yaml

from benchmarks.servers.prometheus import Prometheus
from tests.deploy.chart import (
    NAME,
    NAMESPACE,
    ROOT,
    find,
    needs_helm,
    needs_prometheus,
    quantity,
    render,
    scaling_query,
    validate,
)
from tests.deploy.expressions import groupings, selectors
from tests.support import eventually

JOBS = ROOT / "deploy/keda/jobs.yaml"
REDIS = ROOT / "deploy/redis/kubernetes.yaml"
LASTING = {"--appendonly": "yes", "--appendfsync": "everysec", "--maxmemory-policy": "noeviction"}


def triggers():
    """Returns the queries of the example, as for the namespace of the other tests."""
    found = yaml.safe_load(JOBS.read_text())["spec"]["triggers"]
    named = [
        f'namespace="default",job="{NAME}-metrics"' in one["metadata"]["query"] for one in found
    ]
    assert all(named)
    return [
        one["metadata"]["query"].replace('namespace="default"', f'namespace="{NAMESPACE}"')
        for one in found
    ]


def options(words):
    """Returns a command line's options by name, with Compose's defaults for its variables."""
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in words if word != "redis-server"]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_nodes_are_scaled_by_jobs_from_none():
    # Given
    document = yaml.safe_load(JOBS.read_text())
    # Then
    assert (document["apiVersion"], document["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert document["spec"]["minReplicaCount"] == 0
    assert document["spec"]["scaleTargetRef"] == {"name": f"{NAME}-worker"}
    for trigger in document["spec"]["triggers"]:
        values = trigger["metadata"]
        assert all(isinstance(value, str) for value in values.values())
        # One job is enough for the first node, and no value no reason to take it away.
        assert (values["activationThreshold"], values["ignoreNullValues"]) == ("0", "false")
    # And the first number is the chart's
    assert triggers()[0].replace("( ", "(") == scaling_query().replace("version) (", "version) (")


@needs_helm
def test_scaled_nodes_are_the_charts():
    find(render({"worker": {"autoscaling": {"enabled": False}}}), "Deployment", f"{NAME}-worker")


@pytest.mark.slow
def test_metrics_that_nodes_are_scaled_by_are_exported(exported):
    for query in triggers():
        for selector in selectors(query):
            assert selector.metric in exported.labels
        assert groupings(query) <= {"model", "version"}


@needs_prometheus
@pytest.mark.slow
def test_numbers_are_there_while_no_job_waits(server, exported, tmp_path):
    assert exported.labels
    target = server.metrics.removeprefix("http://")
    labels = {"namespace": NAMESPACE, "job": f"{NAME}-metrics"}
    with Prometheus(tmp_path, target, labels) as prometheus:
        for query in triggers():
            eventually(lambda asked=query: prometheus.value(asked) == 0, 10)


def test_redis_of_the_examples_keeps_what_it_has_and_drops_nothing():
    # Given
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    service = compose["services"]["redis"]
    [_, stateful, policy] = yaml.safe_load_all(REDIS.read_text())
    pod = stateful["spec"]["template"]["spec"]
    [container] = pod["containers"]
    # Then
    for words in (service["command"], container["args"]):
        assert LASTING.items() <= options(words).items()
        assert options(words)["--save"] == ""
    # And what it writes is on a volume
    assert service["volumes"] == ["redis:/data"]
    assert "redis" in compose["volumes"]
    [claim] = stateful["spec"]["volumeClaimTemplates"]
    assert container["volumeMounts"] == [{"name": claim["metadata"]["name"], "mountPath": "/data"}]
    # And it has the memory, and the room, to write its file again
    most_bytes = quantity(options(container["args"])["--maxmemory"].replace("gb", "Gi"))
    assert quantity(container["resources"]["requests"]["memory"]) >= most_bytes
    assert quantity(container["resources"]["limits"]["memory"]) > 2 * most_bytes
    assert quantity(claim["spec"]["resources"]["requests"]["storage"]) >= 3 * most_bytes
    # And its door is for its own users
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod_labels(stateful)


def pod_labels(stateful):
    return stateful["spec"]["template"]["metadata"]["labels"].items()


@needs_helm
def test_redis_lets_the_charts_pods_in():
    *_, policy = yaml.safe_load_all(REDIS.read_text())
    [rule] = policy["spec"]["ingress"]
    [peer] = rule["from"]
    for part in ("ingress", "worker"):
        template = find(render(), "Deployment", f"{NAME}-{part}")["spec"]["template"]
        assert peer["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_redis_is_what_kubernetes_accepts():
    validate(list(yaml.safe_load_all(REDIS.read_text())))
