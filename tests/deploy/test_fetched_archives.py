"""`modelStore.fetch`: a node's init container fetches what is missing, whole or not at all."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.deploy.chart import NAME, find, needs_helm, render
from tests.http_server import serving

pytestmark = needs_helm


class Archives(BaseHTTPRequestHandler):
    """Has one archive, and one whose transfer breaks off."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.send_response(200 if path in ("/my%20model.mar", "/broken.mar") else 404)
        self.send_header("Content-Length", "10" if path == "/broken.mar" else "4")
        self.end_headers()
        self.wfile.write(b"mar!")

    def log_message(self, *words):
        pass


@pytest.fixture
def place():
    with serving(HTTPServer(("127.0.0.1", 0), Archives)) as url:
        yield url


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
