"""docs/kubernetes.md on a Docker engine: what the chart renders runs, serves, and is replaced."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.compose.pods import Machine
from tests.compose.stack import REGISTRY, ROOT
from tests.deploy.chart import NAME, ONE_NODE, find, needs_helm, render
from tests.e2e.archives import make_archive

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600), needs_helm]

HANDLER = "def handle(data, context):\n    return [len(row['body']) for row in data or []]\n"
URL = "redis://torchferry-redis:6379"
ASKING_S = 30


@pytest.fixture(scope="module")
def machine(images):
    assert images.revision
    with Machine({"redis-url": URL}).running() as machine:
        yield machine


@pytest.fixture(scope="module")
def deployments():
    manifests = render({**ONE_NODE, "image": {"registry": REGISTRY}})
    return {part: find(manifests, "Deployment", f"{NAME}-{part}") for part in ("ingress", "worker")}


@pytest.fixture(scope="module")
def pods(machine, deployments):
    """Starts Redis, a worker and an ingress: the page's first three steps."""
    manifests = yaml.safe_load_all((ROOT / "deploy/redis/kubernetes.yaml").read_text())
    redis = find(list(manifests), "StatefulSet", "torchferry-redis")
    started = {"redis": machine.start(redis, "torchferry-redis")}
    started["redis"].wait_ready()
    started["worker"] = machine.start(deployments["worker"], "worker")
    started["ingress"] = machine.start(deployments["ingress"], NAME)
    for pod in started.values():
        pod.wait_ready()
    return started


@pytest.fixture(scope="module")
def model(pods, tmp_path_factory):
    """Its fourth step."""
    folder = tmp_path_factory.mktemp("store")
    archive = make_archive(folder, "model", {"handler.py": HANDLER})
    pods["worker"].copy("/model-store", "model.mar", Path(folder, archive).read_bytes())
    return pods["ingress"].execute("ferry", "models", "register", "model.mar")


def test_model_is_registered_from_the_ingress(model):
    assert 'Model "model" Version: 1.0 registered with 1 initial workers' in model


@pytest.mark.usefixtures("model")
def test_nodes_are_replaced_without_a_lost_request(machine, deployments, pods, record_property):
    # Given the page's client, which asks for a while
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    [program] = re.findall(r"kubectl run asker .* -- python -c '(.*?)'", page, re.DOTALL)
    program = program.replace("+ 180", f"+ {ASKING_S}")
    image = pods["ingress"].container["image"]
    words = ["docker", "run", "--rm", "--network", machine.name, image, "python", "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as asking:
        # When, three times: a new node comes, and then the old one goes
        worker, codes = pods["worker"], []
        for _ in range(3):
            following = machine.start(deployments["worker"], "worker")
            following.wait_ready()
            codes.append(worker.end())
            worker = following
        assert asking.poll() is None, "it asked for too short a time"
        printed, _ = asking.communicate(timeout=ASKING_S + 30)
    # Then
    record_property("answers while three nodes were replaced", printed.strip())
    answers = re.fullmatch(r"\{200: (\d+)\}", printed.strip())
    assert answers, printed
    assert int(answers[1]) > 10
    assert codes == [0, 0, 0]


def test_ingress_ends_with_exit_code_0(pods, machine, deployments):
    assert pods["ingress"].end() == 0
    machine.start(deployments["ingress"], NAME).wait_ready()
