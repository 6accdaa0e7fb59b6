"""Whatever says which Pythons will do says the same, and an older one is refused at once."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OLDEST = PROJECT["project"]["requires-python"].removeprefix(">=")
TOO_OLD = "3.10"


def minor(version):
    return int(version.removeprefix("3."))


def test_classifiers_are_the_pythons_from_the_oldest_on():
    prefix = "Programming Language :: Python :: 3."
    named = [line for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)]
    minors = [int(line.removeprefix(prefix)) for line in named]
    assert minors == list(range(minor(OLDEST), minor(OLDEST) + len(minors)))


def test_style_is_checked_for_the_oldest_python():
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py3{minor(OLDEST)}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.md", r"Python (3\.\d+) or later"),
        ("docs/operations.md", r"Python (3\.\d+) or later"),
        ("CHANGELOG.md", r"Python (3\.\d+), .* or later"),
        ("Makefile", r"Python (3\.\d+) or later"),
        ("deploy/docker/Dockerfile", r"^FROM python:(3\.\d+)-"),
    ],
)
def test_file_names_the_oldest_python(name, words):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert set(re.findall(words, text, re.MULTILINE)) == {OLDEST}


def interpreter(path, version):
    """An executable that runs a program as a Python of this version would, and nothing else."""
    program = f"import sys; sys.version_info = (3, {minor(version)}); exec(sys.argv[1])"
    words = shlex.join([sys.executable, "-c", program])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {words} "$2"\n')
    path.chmod(0o755)
    return path


def what_make_says(folder, python):
    """Why `make install` with this Python fails in a folder that has the Makefile only."""
    (folder / "Makefile").symlink_to(ROOT / "Makefile")
    (folder / "pyproject.toml").touch()
    words = ["make", "install", f"PYTHON={python}"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


def test_make_refuses_a_python_that_is_too_old_and_takes_the_oldest(tmp_path):
    for version, words in (
        (TOO_OLD, f"is not Python {OLDEST} or later"),
        (OLDEST, "Cannot make a virtual environment"),
    ):
        folder = tmp_path / version
        folder.mkdir()
        assert words in what_make_says(folder, interpreter(folder / "python", version))
