"""TorchServe in an environment of its own."""

import os
import shutil
from pathlib import Path

from benchmarks.measuring.load import BenchmarkError
from benchmarks.servers.environments import environment_python

TORCHSERVE_VERSION = "0.12.0"
# What TorchServe and its workers import, besides torch, numpy and pillow.
REQUIREMENTS = ("psutil", "packaging", "pyyaml", "wheel")
# TorchServe's image handlers import captum, for explanations only, which no benchmark asks for.
_CAPTUM = "class IntegratedGradients:\n    def __init__(self, model):\n        pass\n"


def torchserve_python(cache: Path) -> Path:
    """Returns the interpreter of an environment in which `python -m ts.model_server` runs.

    The first call makes it, in about 20 s and with a few MB.

    Raises:
        BenchmarkError: Java or torch is missing, or the installation failed.
    """
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise BenchmarkError("TorchServe needs Java: apt-get install openjdk-17-jre-headless")
    installs = (("--no-deps", f"torchserve=={TORCHSERVE_VERSION}"), REQUIREMENTS)
    return environment_python(cache, f"torchserve-{TORCHSERVE_VERSION}", installs)


def write_captum(folder: Path) -> None:
    """Writes a stand-in for captum, which TorchServe can import with the folder on PYTHONPATH."""
    package = folder / "captum"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "attr.py").write_text(_CAPTUM)
