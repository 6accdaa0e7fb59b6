"""The wheel alone, in an environment without this checkout, serves a handler that imports `ts`."""

import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import requests

from tests.distributions import build_wheels, install
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports

HANDLER = """
from ts.torch_handler.base_handler import BaseHandler
import ts


class Handler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [ts.__file__] * len(data)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_wheel_serves_without_the_checkout(tmp_path: Path) -> None:
    # Given an environment with the dependencies of this one, and the wheels
    wheels = build_wheels(tmp_path / "wheels", ".", "packages/client")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    site = Path(
        sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    )
    names = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as bundle:
            names |= {name.split("/")[0] for name in bundle.namelist()}
            bundle.extractall(site)
    dependencies = {str(Path(requests.__file__).parents[1]), sysconfig.get_path("purelib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(dependencies)))
    # Then nothing of ours but these is importable
    assert {name for name in names if not name.endswith(".dist-info")} == {
        "batching",
        "ferry",
        "ferry_client",
        "ingress",
        "workers",
    }

    # When
    program = tmp_path / "ferry"
    python = environment / "bin" / "python"
    program.write_text(f"#!{python}\nimport sys\nfrom ferry.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    store = tmp_path / "store"
    store.mkdir()
    archive = make_archive(store, "wheeled", {"handler.py": HANDLER})
    port = free_ports(3)
    words = ["up", "--port-base", str(port), "--model-store", str(store)]
    process = FerryProcess(tmp_path, words, program=program)
    try:
        process.wait_for_line("Model server started.")
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


def test_new_models_pass_their_tests_with_the_wheel_and_its_dependencies_alone(
    tmp_path: Path,
) -> None:
    # Given an environment that has the wheels, what they depend on, and pytest
    wheels = build_wheels(tmp_path / "wheels", ".", "packages/client")
    python = install(tmp_path / "environment", *map(str, wheels), "pytest")
    models = tmp_path / "models"
    models.mkdir()
    # When
    for kind in ("json", "text", "image", "onnx"):
        ferry = [str(python.with_name("ferry")), "new", f"my_{kind}", f"--{kind}"]
        subprocess.run(ferry, cwd=models, check=True, capture_output=True)
    tested = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=models,
        capture_output=True,
        text=True,
        check=False,
    )
    # Then those that need Pillow or onnxruntime say so
    assert tested.stdout.strip().splitlines()[-1].startswith("2 passed, 2 skipped"), tested.stdout
