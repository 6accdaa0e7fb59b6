"""The tables of docs/moving-from-torchserve.md name all of TorchServe, and what there is here."""

import re

import yaml

from batching.settings.settings import BY_KEY
from tests.deploy.chart import CHART, ROOT
from tests.deploy.test_torchserve_dashboard import recorded_metrics

PAGE = ROOT / "docs/moving-from-torchserve.md"
# Source: TorchServe 0.12 kubernetes/Helm, values.yaml and what its templates ask for besides.
THEIR_VALUES = {
    "torchserve_image",
    "namespace",
    "torchserve.management_port",
    "torchserve.inference_port",
    "torchserve.metrics_port",
    "torchserve.grpc_inference_port",
    "torchserve.pvd_mount",
    "torchserve.n_gpu",
    "torchserve.n_cpu",
    "torchserve.memory_limit",
    "torchserve.memory_request",
    "deployment.replicas",
    "persistentVolume.name",
    "securityContext.groupId",
}


def rows(heading):
    """Returns the names between backticks of each cell of the table under a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [
        [set(re.findall(r"`([^`]+)`", cell)) for cell in line.strip("|").split("|")]
        for line in lines[2:]
    ]


def paths(values, prefix=""):
    """Yields the dotted name of each value of a chart, and of what it lies in."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}.")


def test_every_metric_of_torchserve_has_its_row():
    assert set(recorded_metrics()) == set().union(*(theirs for theirs, *_ in rows("8.")))


def test_every_value_of_their_chart_has_its_row():
    assert set().union(*(theirs for theirs, _ in rows("With Helm"))) >= THEIR_VALUES


def test_values_of_our_chart_are_there():
    # Given what the chart has, and settings, which its value `config` takes
    there = set(paths(yaml.safe_load((CHART / "values.yaml").read_text())))
    there |= set(BY_KEY)
    # When
    named = set().union(*(ours for _, ours in rows("With Helm")))
    # Then
    assert named - there == {"--namespace", "model-config.yaml"}
