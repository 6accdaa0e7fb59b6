"""Builds the distributions of this repository, and environments that have nothing else."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build_wheels(folder: Path, *projects: str) -> list[Path]:
    """Returns the wheels of these folders of the repository; skips where none can be built."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    done = subprocess.run(
        [*words, str(folder), *(str(ROOT / project) for project in projects)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.strip()[-200:]}")
    return sorted(folder.glob("*.whl"))


def install(folder: Path, *packages: str) -> Path:
    """Returns the Python of a new environment with these; skips where they cannot be had."""
    python = folder / "bin" / "python"
    venv.create(folder, with_pip=True)
    words = [str(python), "-m", "pip", "install", "--quiet", *packages]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no dependencies can be had here: {done.stderr.strip()[-200:]}")
    return python
