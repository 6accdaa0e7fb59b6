"""TorchServe in an environment of its own, made once and kept under `.bench/`."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.load import BenchmarkError

TORCHSERVE_VERSION = "0.12.0"
# What TorchServe and a worker without a default handler import, besides torch, numpy and pillow.
# (Its image and text handlers also want captum; the echo handler does not.)
REQUIREMENTS = ("psutil", "packaging", "pyyaml", "wheel")


def torchserve_python(cache: Path) -> Path:
    """The interpreter of an environment in which `python -m ts.model_server` runs.

    The first call makes it (about 20 s, a few MB): torch is not installed again, a .pth file points
    at the one this interpreter uses. The name of the folder carries the versions, so another
    TorchServe or Python gets another folder.

    Raises:
        BenchmarkError: Java or torch is missing, or the installation failed.
    """
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise BenchmarkError("TorchServe needs Java: apt-get install openjdk-17-jre-headless")
    folder = cache / f"torchserve-{TORCHSERVE_VERSION}-py{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        _ignore_in_git(cache)
        venv.create(folder, with_pip=True, clear=True)
        _install(python, "--no-deps", f"torchserve=={TORCHSERVE_VERSION}")
        _install(python, *REQUIREMENTS)
        ready.touch()
    # Written each time: the environment outlives the one it borrows torch from.
    _site_packages(folder).joinpath("borrowed_torch.pth").write_text(f"{_torch_home()}\n")
    return python


def _ignore_in_git(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    cache.joinpath(".gitignore").write_text("*\n")


def _site_packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))


def _torch_home() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BenchmarkError(f"torch is missing: {sys.executable} -m pip install torch")
    return Path(spec.origin).parent.parent


def _install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{run.stderr}")
