"""Other servers in environments of their own, made once and kept under `.bench/`."""

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.load import BenchmarkError


def environment_python(cache: Path, name: str, installs: Sequence[Sequence[str]]) -> Path:
    """Returns the interpreter of an environment with these packages.

    The first call makes it: torch and what comes with it is not installed again, a .pth file points
    at what this interpreter uses. The folder's name carries Python's version beside `name`, which
    should carry that of what is installed.

    Args:
        cache: the folder of all environments.
        name: of this one.
        installs: the arguments of each `pip install`, in order.

    Raises:
        BenchmarkError: torch is missing, or an installation failed.
    """
    folder = cache / f"{name}-py{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    is_new = not ready.exists()
    if is_new:
        _ignore_in_git(cache)
        venv.create(folder, with_pip=True, clear=True)
    # Written each time: the environment outlives the one it borrows from.
    _site_packages(folder).joinpath("borrowed_torch.pth").write_text(f"{_torch_home()}\n")
    if is_new:
        for arguments in installs:
            _install(python, *arguments)
        ready.touch()
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
        lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        why = "\n".join(lines) or run.stderr
        raise BenchmarkError(f"pip install {' '.join(arguments)} failed:\n{why}")
