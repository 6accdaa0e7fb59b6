"""Whatever says which Pythons will do says the same, and an older one is refused at once."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OLDEST = PROJECT["project"]["requires-python"].removeprefix(">=")


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
