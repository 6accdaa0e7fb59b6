"""Builds the distributions of this repository, and environments that have nothing else.

`make release` (scripts/release.py) names the wheels of the release, and a Python to try them with.
What cannot be built or installed is a failure then, where it is skipped otherwise.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = os.environ.get("RELEASE_WHEELS")
PYTHON = os.environ.get("RELEASE_PYTHON", sys.executable)


def build_wheels(folder: Path, *projects: str) -> list[Path]:
    """Returns the wheels of these folders of the repository; skips where none can be built."""
    if RELEASE:
        return sorted(_released(Path(RELEASE), project) for project in projects)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    _run([*words, str(folder), *(str(ROOT / it) for it in projects)], "no wheel can be built here")
    return sorted(folder.glob("*.whl"))


def install(folder: Path, *packages: str) -> Path:
    """Returns the Python of an environment with these; skips where they cannot be had.

    It is made if it is not there.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        _run([PYTHON, "-m", "venv", str(folder)], "no environment can be made here")
    words = [str(python), "-m", "pip", "install", "--quiet"]
    _run([*words, *packages], "no dependencies can be had here")
    return python


def _released(folder: Path, project: str) -> Path:
    metadata = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))
    name = metadata["project"]["name"].replace("-", "_")
    [wheel] = folder.glob(f"{name}-*.whl")
    return wheel


def _run(words: Sequence[str], complaint: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        act = pytest.fail if RELEASE else pytest.skip
        act(f"{complaint}: {done.stderr.strip()[-200:]}")
