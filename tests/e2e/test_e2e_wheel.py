"""The wheel alone, in an environment without this checkout, serves files, archives and handlers."""

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import requests

from ferry.version import commit
from tests.distributions import PYTHON, ROOT, build_wheels, install
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
TORCH_HANDLER = """
from ts.torch_handler.base_handler import BaseHandler
import ts


class Handler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [ts.__file__] * len(data)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Builds the wheels, which have nothing but these packages."""
    wheels = build_wheels(tmp_path_factory.mktemp("wheels"), ".", "packages/client")
    names = {entry.split("/")[0] for wheel in wheels for entry in zipfile.ZipFile(wheel).namelist()}
    ours = {"batching", "ferry", "ferry_client", "ingress", "workers"}
    assert {name for name in names if not name.endswith(".dist-info")} == ours
    return wheels


@pytest.fixture(scope="module")
def ferry(wheels, tmp_path_factory):
    """Installs the wheels with nothing but what they depend on; returns their command."""
    folder = tmp_path_factory.mktemp("wheel")
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


@pytest.mark.skipif(sys.executable != PYTHON, reason="the torch that is here is another Python's")
def test_wheel_serves_a_handler_without_the_checkout(wheels, tmp_path):
    # Given an environment with the dependencies of this one, and the wheels
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    roots = {"base": str(environment), "platbase": str(environment)}
    site = Path(sysconfig.get_path("purelib", vars=roots))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as bundle:
            bundle.extractall(site)
    dependencies = {str(Path(requests.__file__).parents[1]), sysconfig.get_path("purelib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(dependencies)))
    program = tmp_path / "ferry"
    python = environment / "bin" / "python"
    program.write_text(f"#!{python}\nimport sys\nfrom ferry.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    (store := tmp_path / "store").mkdir()
    archive = make_archive(store, "wheeled", {"handler.py": TORCH_HANDLER})
    port = free_ports(3)
    words = ["up", "--port-base", str(port), "--model-store", str(store)]
    process = FerryProcess(tmp_path, words, program=program)
    try:
        process.wait_for_line("Model server started.")
        # When
        query = {"url": archive, "initial_workers": 1, "synchronous": "true"}
        url = f"http://127.0.0.1:{port + 1}/models"
        registered = requests.post(url, params=query, timeout=60)
        answer = requests.post(f"http://127.0.0.1:{port}/predictions/wheeled", b"x", timeout=60)
        process.stop_cleanly()
    finally:
        process.kill()
    # Then
    assert registered.status_code == 200, registered.text
    assert Path(answer.text).is_relative_to(site / "workers" / "compat" / "ts")


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
