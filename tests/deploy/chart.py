"""The chart as Helm renders it: with a `helm` on the PATH, else with Helm's Go code in a wheel.

Neither is needed to work on torchferry; without them the tests that render are skipped.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

try:
    import helm_python
except ImportError:
    helm_python = None

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/torchferry"
RELEASE, NAMESPACE = "ferry", "ml"
NAME = "ferry-torchferry"
KUBE_VERSION = "1.30.0"
TIMEOUT_S = 60

HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(
    HELM is None and helm_python is None,
    reason="no helm here: install it, or `pip install helm-python-sdk`",
)

# Everything that is off by default.
EVERYTHING: dict[str, Any] = {
    "auth": {"existingSecret": "ferry-keys"},
    "redis": {"tls": {"existingSecret": "redis-tls", "clientCertificate": True}},
    "config": {"job_queue_size": 500},
    "ingress": {"loadModels": "all"},
    "worker": {
        "gpu": {"count": 2},
        "autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
    },
    "networkPolicy": {"managementFrom": [{"podSelector": {"matchLabels": {"role": "operator"}}}]},
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
    """Every manifest of a release with these values.

    Raises:
        Refused: the values break the schema, or a template refuses them.
    """
    text = _render_by_command(values or {}) if HELM else _render_by_library(values or {})
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def lint(values: Mapping[str, Any]) -> list[str]:
    """What `helm lint --strict` has against the chart."""
    if HELM:
        done = _helm("lint", str(CHART), "--strict", values=values)
        return [] if done.returncode == 0 else [done.stdout + done.stderr]
    report = helm_python.lint(CHART, dict(values), strict=True, kube_version=f"v{KUBE_VERSION}")
    warnings = [str(item) for item in report["messages"] if item["severity"] > 1]
    return [*warnings, *report["errors"]]


def package(folder: Path) -> Path:
    """The archive of the chart, in this folder."""
    if HELM:
        _helm("package", str(CHART), "--destination", str(folder), values={})
    else:
        helm_python.package(CHART, destination=folder)
    [archive] = folder.iterdir()
    return archive


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The only manifest of this kind and name."""
    [found] = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def container(manifests: list[Manifest], part: str) -> Manifest:
    """The container of `ingress` or `worker`."""
    [only] = find(manifests, "Deployment", f"{NAME}-{part}")["spec"]["template"]["spec"][
        "containers"
    ]
    found: Manifest = only
    return found


def environment(manifests: list[Manifest], part: str) -> dict[str, str]:
    """The variables of `ingress` or `worker` that have values of their own."""
    variables = container(manifests, part)["env"]
    return {item["name"]: item["value"] for item in variables if "value" in item}


def _render_by_command(values: Mapping[str, Any]) -> str:
    place = ("--namespace", NAMESPACE, "--kube-version", KUBE_VERSION)
    done = _helm("template", RELEASE, str(CHART), *place, values=values)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def _helm(*arguments: str, values: Mapping[str, Any]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(HELM), *arguments, *(["--values", "-"] if values else [])],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _render_by_library(values: Mapping[str, Any]) -> str:
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(dict(values))
            rendered = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise Refused(str(error)) from error
    manifests = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return "\n---\n".join(manifests)


def scaling_query() -> str:
    """The expression that nodes are scaled by; without Helm, as its template has it."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    body = text.partition('"torchferry.openRequestsQuery"')[2].partition("{{- end -}}")[0]
    line = body.strip().splitlines()[-1]
    labels = f'namespace="{NAMESPACE}",job="{NAME}-metrics"'
    return re.sub(r"\{\s*\{\{- \$from -\}\}\s*\}", f"{{{labels}}}", line)
