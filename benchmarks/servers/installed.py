"""Other servers in environments of their own, made once and kept under `.bench/`."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.records import CACHE, BenchmarkError

TORCHSERVE_VERSION = "0.12.0"
# TorchServe's image handlers import captum, for explanations only, which no benchmark asks for.
_CAPTUM = "class IntegratedGradients:\n    def __init__(self, model):\n        pass\n"


def environment_of(package: str, *others: str, options: Sequence[str] = ()) -> Path:
    """Returns the interpreter of an environment with this package, `NAME==VERSION`, and others.

    The first call makes it: torch and what comes with it is not installed again, a .pth file points
    at what this interpreter uses. The options are pip's, for the package.

    Raises:
        BenchmarkError: torch is missing, or an installation failed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BenchmarkError(f"torch is missing: {sys.executable} -m pip install torch")
    folder = CACHE / f"{package.replace('==', '-')}-py{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    is_new = not (folder / "ready").exists()
    if is_new:
        CACHE.mkdir(parents=True, exist_ok=True)
        CACHE.joinpath(".gitignore").write_text("*\n")
        venv.create(folder, with_pip=True, clear=True)
    # Written each time: the environment outlives the one it borrows from.
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    packages.joinpath("borrowed_torch.pth").write_text(f"{Path(spec.origin).parent.parent}\n")
    if is_new:
        for words in filter(None, ([*options, package], others)):
            command = [str(python), "-m", "pip", "install", "--quiet", *words]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
                why = "\n".join(lines) or run.stderr
                raise BenchmarkError(f"pip install {' '.join(words)} failed:\n{why}")
        (folder / "ready").touch()
    return python


def torchserve_python() -> Path:
    """Returns the interpreter of an environment in which `python -m ts.model_server` runs.

    The first call makes it, in about 20 s and with a few MB.

    Raises:
        BenchmarkError: Java or torch is missing, or the installation failed.
    """
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise BenchmarkError("TorchServe needs Java: apt-get install openjdk-17-jre-headless")
    # What TorchServe and its workers import, besides torch, numpy and pillow.
    imported = ("psutil", "packaging", "pyyaml", "wheel")
    return environment_of(f"torchserve=={TORCHSERVE_VERSION}", *imported, options=["--no-deps"])


def write_captum(folder: Path) -> None:
    """Writes a stand-in for captum, which TorchServe can import with the folder on PYTHONPATH."""
    package = folder / "captum"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "attr.py").write_text(_CAPTUM)
