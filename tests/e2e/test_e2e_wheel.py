"""The wheel alone, in an environment without this checkout, serves files, archives and handlers."""

import subprocess
import tomllib
import zipfile

import pytest
import requests

from ferry.version import commit
from tests.distributions import ROOT, build_wheels, install
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports
from tests.support import eventually

MODEL = """
WEIGHTS = [2, 3]


def predict(batch):
    return [sum(w * x for w, x in zip(WEIGHTS, row)) for row in batch]
"""
HANDLER = """
import ts

def handle(data, context):
    return [ts.__file__] * len(data or ())
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def ferry(tmp_path_factory):
    """Installs the wheels with nothing but what they depend on; returns their command."""
    folder = tmp_path_factory.mktemp("wheel")
    wheels = build_wheels(folder / "wheels", ".", "packages/client")
    names = {entry.split("/")[0] for wheel in wheels for entry in zipfile.ZipFile(wheel).namelist()}
    ours = {"batching", "ferry", "ferry_client", "ingress", "workers"}
    assert {name for name in names if not name.endswith(".dist-info")} == ours
    return install(folder / "environment", *map(str, wheels)).with_name("ferry")


def test_wheel_knows_its_version_and_the_commit_that_it_was_built_from(ferry):
    done = subprocess.run([str(ferry), "--version"], capture_output=True, text=True, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = f" (commit {commit()})" if commit() else ""
    assert done.stdout == f"ferry, version {project['version']}{known}\n"


@pytest.mark.parametrize("command", ["serve", "up"])
def test_wheel_serves_a_file_and_its_archive_with_the_redis_that_it_brings(
    ferry, tmp_path, command
):
    # Given, with neither torch nor another Redis within reach
    (tmp_path / "model.py").write_text(MODEL)
    port = free_ports(3)
    words = ["serve", "model.py", "--port", str(port)]
    if command == "up":
        archive = [str(ferry), "archive", "model.py", "--export-path", "."]
        subprocess.run(archive, cwd=tmp_path, check=True, capture_output=True)
        make_archive(tmp_path, "handled", {"handler.py": HANDLER}, config="minWorkers: 1")
        words = ["up", "--model-store", ".", "--load-models", "all", "--port-base", str(port)]
    alone = {"PATH": str(ferry.parent)}
    process = FerryProcess(tmp_path, words, program=ferry, environment=alone, cwd=tmp_path)
    try:
        # When
        process.wait_for_line("Ctrl-C ends." if command == "serve" else "Model server started.")
        url = f"http://127.0.0.1:{port}/predictions/model"
        # Then
        assert eventually(lambda: requests.post(url, json=[4, 5], timeout=60).text == "23", 60)
        if command == "up":
            answer = requests.post(f"{url.removesuffix('model')}handled", b"x", timeout=60)
            assert answer.text.startswith(f"{ferry.parents[1]}/lib/")
            assert answer.text.endswith("/site-packages/workers/compat/ts/__init__.py")
        process.stop_cleanly()
    finally:
        process.kill()


def test_new_models_pass_their_tests_with_the_wheel_and_its_dependencies_alone(ferry, tmp_path):
    # Given
    python = install(ferry.parents[1], "pytest")
    models = tmp_path / "models"
    models.mkdir()
    # When
    for kind in ("json", "text", "image", "onnx"):
        words = [str(ferry), "new", f"my_{kind}", f"--{kind}"]
        subprocess.run(words, cwd=models, check=True, capture_output=True)
    tested = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=models,
        capture_output=True,
        text=True,
        check=False,
    )
    # Then those that need Pillow or onnxruntime say so
    assert tested.stdout.strip().splitlines()[-1].startswith("2 passed, 2 skipped"), tested.stdout
