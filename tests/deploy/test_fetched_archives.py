"""`modelStore.fetch`: a node's init container fetches what is missing, whole or not at all."""

import subprocess
import sys

import pytest

from tests.deploy.chart import NAME, find, needs_helm, render
from tests.http_server import StandIn

pytestmark = needs_helm


@pytest.fixture
def place():
    """Has one archive, and one whose transfer breaks off."""

    def answer(method, path, body):
        found = {"/my%20model.mar": b"mar!", "/broken.mar": break_off()}
        content = found.get(path.partition("?")[0])
        return (200, {}, content) if content else (404, {}, b"")

    with StandIn(answer).running() as server:
        yield server.url


def break_off():
    yield b"mar!"
    raise ConnectionAbortedError


def fetch(folder, *urls):
    """Runs the init container's program; returns its exit code."""
    manifests = render({"modelStore": {"fetch": list(urls)}})
    spec = find(manifests, "Deployment", f"{NAME}-worker")["spec"]["template"]["spec"]
    [container] = spec["initContainers"]
    [mount] = container["volumeMounts"]
    assert container["command"][0] == "python"
    words = [str(folder) if word == mount["mountPath"] else word for word in container["command"]]
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, check=False, timeout=30
    )
    return done.returncode


def test_archive_is_fetched_under_the_name_of_its_file(place, tmp_path):
    assert fetch(tmp_path, f"{place}/my%20model.mar?signature=a/b") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["my model.mar"]
    assert (tmp_path / "my model.mar").read_bytes() == b"mar!"


def test_archive_that_is_there_is_left_alone(place, tmp_path):
    (tmp_path / "gone.mar").write_bytes(b"older")
    assert fetch(tmp_path, f"{place}/gone.mar") == 0
    assert (tmp_path / "gone.mar").read_bytes() == b"older"


@pytest.mark.parametrize("name", ["gone.mar", "broken.mar"])
def test_pod_does_not_start_with_half_an_archive(place, tmp_path, name):
    assert fetch(tmp_path, f"{place}/{name}") != 0
    assert not (tmp_path / name).exists()


def test_init_container_has_no_more_rights_than_the_node():
    manifests = render({"modelStore": {"fetch": ["https://models.example.com/model.mar"]}})
    spec = find(manifests, "Deployment", f"{NAME}-worker")["spec"]["template"]["spec"]
    [node], [fetching] = spec["containers"], spec["initContainers"]
    assert fetching["image"] == node["image"]
    assert fetching["securityContext"] == node["securityContext"]
    assert fetching["resources"]["limits"]["memory"]
