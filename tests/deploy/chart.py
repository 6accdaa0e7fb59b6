"""The chart as Helm renders it: Helm's own Go code, in a wheel.

It is not needed to work on torchferry; without it the tests that render are skipped.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.prometheus import PROMETHEUS

try:
    import helm_python
except ImportError:
    helm_python = None

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/torchferry"
RELEASE, NAMESPACE = "ferry", "ml"
NAME = "ferry-torchferry"
PROMTOOL = shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL), reason="no prometheus here: apt-get install prometheus"
)
needs_helm = pytest.mark.skipif(
    helm_python is None, reason="no Helm here: `pip install helm-python-sdk`"
)

ONE_NODE: dict[str, Any] = yaml.safe_load((CHART / "values-one-node.yaml").read_text())
# Everything that is off by default.
EVERYTHING: dict[str, Any] = {
    "modelStore": {"fetch": ["https://models.example.com/model.mar"]},
    "auth": {"existingSecret": "ferry-keys"},
    "redis": {"tls": {"existingSecret": "redis-tls", "clientCertificate": True}},
    "config": {"job_queue_size": 500},
    "webhooks": {"existingSecret": "ferry-hooks", "caCertificate": True},
    "ingress": {"loadModels": "all"},
    "worker": {
        "gpu": {"count": 2},
        "autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
    },
    "networkPolicy": {
        "managementFrom": [{"podSelector": {"matchLabels": {"role": "operator"}}}],
        "webhooks": {"to": [{"podSelector": {"matchLabels": {"role": "receiver"}}}]},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}

Manifest = dict[str, Any]


class Refused(Exception):
    """Helm would not install with these values."""


def render(values: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Returns every manifest of a release with these values.

    Raises:
        Refused: the values break the schema, or a template refuses them.
    """
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(dict(values or {}))
            rendered = chart.render(dict(values or {}), name=RELEASE, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise Refused(str(error)) from error
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [manifest for manifest in yaml.safe_load_all("\n---\n".join(texts)) if manifest]


def lint(values: Mapping[str, Any]) -> list[str]:
    """Returns what `helm lint --strict` has against the chart."""
    report = helm_python.lint(CHART, dict(values), strict=True, kube_version="v1.30.0")
    warnings = [str(item) for item in report["messages"] if item["severity"] > 1]
    return [*warnings, *report["errors"]]


def package(folder: Path) -> Path:
    """Packs the chart into this folder and returns the archive."""
    helm_python.package(CHART, destination=folder)
    [archive] = folder.iterdir()
    return archive


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """Returns the only manifest of this kind and name."""
    [found] = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def validate(manifests: list[Manifest]) -> None:
    """Asserts that Kubernetes knows every field of these manifests, and each has the right type."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="`pip install kubernetes-validate` has the schemas"
    )
    for manifest in manifests:
        validator.validate(manifest, "1.30", strict=True)


def quantity(text: str) -> float:
    """Returns the number that Kubernetes reads: bytes, or cores."""
    digits, unit = re.fullmatch(r"([\d.]+)(m|Mi|Gi)?", text).groups()
    return float(digits) * {"m": 0.001, "Mi": 2**20, "Gi": 2**30, None: 1}[unit]


def container(manifests: list[Manifest], part: str) -> Manifest:
    """Returns the container of `ingress` or `worker`."""
    template = find(manifests, "Deployment", f"{NAME}-{part}")["spec"]["template"]
    found: Manifest
    [found] = template["spec"]["containers"]
    return found


def environment(manifests: list[Manifest], part: str) -> dict[str, str]:
    """Returns the variables of `ingress` or `worker` that have values of their own."""
    variables = container(manifests, part)["env"]
    return {item["name"]: item["value"] for item in variables if "value" in item}


def scaling_query() -> str:
    """Returns the expression that nodes are scaled by; without Helm, as its template has it."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    body = text.partition('"torchferry.openRequestsQuery"')[2].partition("{{- end -}}")[0]
    line = body.strip().splitlines()[-1]
    labels = f'namespace="{NAMESPACE}",job="{NAME}-metrics"'
    return re.sub(r"\{\s*\{\{- \$from -\}\}\s*\}", f"{{{labels}}}", line)
