"""docs/kubernetes.md: what its commands name is there, and its values make a chart that is valid.

There is no cluster here. A shell runs the page's blocks, with programs in the place of kubectl and
the others that only note what they were asked.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ferry.main import main
from tests.deploy.chart import (
    NAME,
    ONE_NODE,
    RELEASE,
    ROOT,
    Manifest,
    container,
    environment,
    find,
    needs_helm,
    quantity,
    render,
    validate,
)
from tests.http_server import StandIn

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
REDIS = list(yaml.safe_load_all((ROOT / "deploy/redis/kubernetes.yaml").read_text()))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KINDS = {kind.lower(): kind for kind in ("Deployment", "Service", "StatefulSet")}
STAND_IN = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" > "$COMMANDS/$(date +%s%N)"
if [ "$1 $2" = "get pods" ]; then echo a-pod; fi
"""
MODEL = "/predictions/model"
CHART_PATH = "deploy/helm/torchferry"

pytestmark = needs_helm


def blocks(kind: str) -> list[str]:
    """Returns the page's blocks of this language, in their order."""
    return [text for language, text in BLOCK.findall(PAGE) if language == kind]


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Returns the arguments that the page gives each program, in its order."""
    programs, noted = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("noted")
    for name in ("curl", "docker", "helm", "kind", "kubectl", "make", "minikube"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([*blocks("sh"), "wait"])],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COMMANDS": str(noted)},
        check=True,
        timeout=30,
    )
    return [path.read_text().split("\0")[:-1] for path in sorted(noted.iterdir())]


def of(commands, *words):
    """Returns the rest of each command that begins with these words."""
    count = len(words)
    return [command[count:] for command in commands if tuple(command[:count]) == words]


def set_in(values: Manifest, path: str, text: str) -> None:
    """Does what Helm does with `--set PATH=TEXT`."""
    *parents, last = path.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
    values[last] = yaml.safe_load(text)


@pytest.fixture(scope="module")
def releases(commands):
    """Renders the chart as each `helm install` and `helm upgrade` of the page would."""
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("chart")
    parser.add_argument("--values")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    values: Manifest = {}
    found = []
    for words in [*of(commands, "helm", "install"), *of(commands, "helm", "upgrade")]:
        given = parser.parse_args(words)
        assert (given.release, given.chart) == (RELEASE, CHART_PATH)
        # An upgrade without that flag would forget the values of the first one.
        assert given.reset_then_reuse_values == bool(found)
        values |= yaml.safe_load((ROOT / given.values).read_text()) if given.values else {}
        for setting in given.set:
            set_in(values, *setting.split("=", 1))
        found.append(render(values))
    return found


def images(manifests):
    return {container(manifests, part)["image"] for part in ("ingress", "worker")}


def test_page_installs_what_kubernetes_accepts(releases):
    first, second, third, last = releases
    for manifests in releases:
        validate(manifests)
    # And each upgrade does what the page says
    assert find(first, "Deployment", f"{NAME}-worker")["spec"]["replicas"] == 1
    assert find(second, "Deployment", f"{NAME}-worker")["spec"]["replicas"] == 2
    assert images(second) == images(first)
    assert images(third) == {f"torchferry-ingress:{VERSION}", "torchferry-worker:next"}
    assert images(last) == {"torchferry-ingress:next", "torchferry-worker:next"}


def test_page_loads_the_images_that_the_pods_run(commands, releases):
    [built] = [words for words in of(commands, "make") if words[0] == "images"]
    assert built == ["images", "TORCH_INDEX="]
    first, second = of(commands, "kind", "load", "docker-image", "--name", "torchferry")
    assert set(first) == images(releases[0])
    assert set(second) == images(releases[-1])
    assert {image for [image] in of(commands, "minikube", "image", "load")} == set(first)
    # And those of the upgrade are made of them
    assert sorted(of(commands, "docker", "tag")) == [
        [f"torchferry-{part}:{VERSION}", f"torchferry-{part}:next"]
        for part in ("ingress", "worker")
    ]


def test_page_names_objects_that_are_there(commands, releases):
    # Given
    manifests = [*releases[-1], *REDIS]
    words = [word for command in of(commands, "kubectl") for word in command]
    named = [word.split("/") for word in words if re.fullmatch(r"[a-z]+/[a-z-]+", word)]
    # Then
    assert {kind for kind, _ in named} == KINDS.keys()
    for kind, name in named:
        find(manifests, KINDS[kind], name)
    # And so do its sentences
    for name in re.findall(r"deployment/([\w-]+)", PAGE):
        find(manifests, "Deployment", name)
    # And files
    files = of(commands, "kubectl", "apply", "-f") + of(commands, "kubectl", "delete", "-f")
    assert files
    assert all((ROOT / file).is_file() for [file] in files)


def test_page_makes_the_secret_that_the_pods_read(commands, releases):
    # Given
    [[name, literal]] = of(commands, "kubectl", "create", "secret", "generic")
    key, _, url = literal.removeprefix("--from-literal=").partition("=")
    service = find(REDIS, "Service", re.fullmatch(r"redis://([\w-]+):6379", url)[1])
    # Then
    assert service["spec"]["ports"][0]["port"] == 6379
    for part in ("ingress", "worker"):
        [variable] = [v for v in container(releases[0], part)["env"] if v["name"] == "REDIS_URL"]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": name, "key": key}


def test_page_puts_the_archive_where_the_nodes_look(commands, releases):
    # Given
    [words] = of(commands, "kubectl", "get", "pods")
    label, _, value = words[words.index("--selector") + 1].partition("=")
    template = find(releases[0], "Deployment", f"{NAME}-worker")["spec"]["template"]
    [[source, target, _, name]] = of(commands, "kubectl", "cp")
    # Then
    assert template["metadata"]["labels"][label] == value
    assert container(releases[0], "worker")["name"] == name
    assert target == f"a-pod:{environment(releases[0], 'worker')['FERRY_MODEL_STORE']}/{source}"
    # And the claim that they share is one that a cluster of one machine has
    claim = find(releases[0], "PersistentVolumeClaim", f"{NAME}-model-store")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_page_packs_its_model_and_registers_it(commands, tmp_path, monkeypatch):
    # Given
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(blocks("python")[0])
    [packing] = [words for words in of(commands, "docker", "run") if "ferry" in words]
    place = packing.index("ferry")
    # When
    done = CliRunner().invoke(main, packing[place + 1 :])
    # Then
    assert done.exit_code == 0, done.output
    assert packing[place - 1] == f"torchferry-worker:{VERSION}"
    [[source, *_]] = of(commands, "kubectl", "cp")
    assert Path(source).is_file()
    # And what is called in the ingress is there
    called = of(commands, "kubectl", "exec", f"deployment/{NAME}-ingress", "--", "ferry")
    assert called[0] == ["models", "register", source]
    for words in called:
        assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0


def test_page_forwards_a_port_that_the_service_has(commands, releases):
    # Given
    [[target, port]] = of(commands, "kubectl", "port-forward")
    [inference] = find(releases[0], "Service", target.partition("/")[2])["spec"]["ports"]
    # Then
    assert int(port) == inference["port"]
    urls = [word for words in of(commands, "curl") for word in words if "localhost" in word]
    assert {url.partition("/")[0] for url in urls} == {f"localhost:{port}"}
    # And the port that is named beside it is where management listens in its pod
    [(part, management)] = re.findall(r"`kubectl port-forward deployment/(\S+) (\d+)`", PAGE)
    assert part == f"{NAME}-ingress"
    address = environment(releases[0], "ingress")["FERRY_MANAGEMENT_ADDRESS"]
    assert address == f"http://127.0.0.1:{management}"


def test_pages_client_counts_answers_by_their_status(commands, releases):
    # Given
    [[name, *words]] = of(commands, "kubectl", "run")
    program = words[-1]
    [inference] = find(releases[0], "Service", NAME)["spec"]["ports"]
    # When: for a moment, and beside a server of this test
    with StandIn(lambda _, path, __: (200, {}, b"") if path == MODEL else None).running() as server:
        here = program.replace(f"http://{NAME}:{inference['port']}", server.url)
        here = here.replace("+ 180", "+ 1.5")
        run = [sys.executable, "-c", here]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=30)
    # Then
    answers = ast.literal_eval(done.stdout)
    assert list(answers) == [200]
    assert answers[200] > 1
    assert of(commands, "kubectl", "logs", "--follow", name)
    assert of(commands, "kubectl", "delete", "pod", name)


def test_page_removes_what_it_made(commands, releases):
    # Given
    deleted = of(commands, "kubectl", "delete", "persistentvolumeclaim")
    [stateful] = [m for m in REDIS if m["kind"] == "StatefulSet"]
    [template] = stateful["spec"]["volumeClaimTemplates"]
    # Then
    assert [RELEASE] in of(commands, "helm", "uninstall")
    kept = find(releases[0], "PersistentVolumeClaim", f"{NAME}-model-store")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    of_redis = f"{template['metadata']['name']}-{stateful['metadata']['name']}-0"
    assert deleted == [[kept["metadata"]["name"]], [of_redis]]
    assert of(commands, "kubectl", "apply", "-f") == of(commands, "kubectl", "delete", "-f")
    [[secret, _]] = of(commands, "kubectl", "create", "secret", "generic")
    assert [secret] in of(commands, "kubectl", "delete", "secret")


def test_pods_fit_a_laptop_while_they_are_replaced(releases):
    # Given two nodes, one more of each while it takes their place, and Redis
    requests = [container(releases[-1], "worker")["resources"]["requests"]] * 3
    requests += [container(releases[-1], "ingress")["resources"]["requests"]] * 2
    [stateful] = [m for m in REDIS if m["kind"] == "StatefulSet"]
    [redis] = stateful["spec"]["template"]["spec"]["containers"]
    requests += [redis["resources"]["requests"]]
    # When
    cores = sum(quantity(one["cpu"]) for one in requests)
    gibibytes = sum(quantity(one["memory"]) for one in requests) / 2**30
    # Then
    assert "ask for less than one core and 5 GiB of memory" in " ".join(PAGE.split())
    assert cores < 1
    assert gibibytes < 5


def test_pages_values_for_archives_from_a_url_are_valid():
    # Given
    [text] = blocks("yaml")
    # When
    manifests = render({**ONE_NODE, **yaml.safe_load(text)})
    # Then
    validate(manifests)
    assert "PersistentVolumeClaim" not in {manifest["kind"] for manifest in manifests}
    spec = find(manifests, "Deployment", f"{NAME}-worker")["spec"]["template"]["spec"]
    [fetching] = spec["initContainers"]
    assert fetching["command"][-1] == "https://models.example.com/model.mar"
    # And the model is registered by the name of the file that is fetched
    assert environment(manifests, "ingress")["FERRY_LOAD_MODELS"] == "model=model.mar"


def test_values_of_a_registry_name_its_images():
    # Given
    text = (ROOT / "docs" / "container.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"^ *helm install {RELEASE} {CHART_PATH} --set (\S+)$", text, re.MULTILINE)
    values: Manifest = {}
    # When
    set_in(values, *line.split("=", 1))
    # Then
    place = "registry.example.com/team"
    assert images(render(values)) == {
        f"{place}/torchferry-{part}:{VERSION}" for part in ("ingress", "worker")
    }
