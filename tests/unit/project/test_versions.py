"""Whatever names a version, of ours or of Python, names the same one."""

import re
import runpy
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from ferry.main import main
from ferry.version import commit

ROOT = Path(__file__).parents[3]
SIDES = sorted(ROOT.glob("packages/*/pyproject.toml"))


def table_of(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


PROJECT = table_of(ROOT / "pyproject.toml")["project"]
VERSION = PROJECT["version"]
OLDEST = PROJECT["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("path", SIDES, ids=lambda path: path.parent.name)
def test_side_package_has_the_version_of_the_server(path):
    table = table_of(path)
    source = table["tool"]["hatch"]["version"]
    text = (path.parent / source["path"]).read_text(encoding="utf-8")
    assert "version" in table["project"]["dynamic"]
    assert re.findall(source["pattern"], text, re.MULTILINE) == [VERSION]


@pytest.mark.parametrize("path", [ROOT / "pyproject.toml", *SIDES], ids=lambda it: it.parent.name)
def test_distributions_work_with_others_of_their_version_alone(path):
    major, minor = VERSION.split(".")[:2]
    wanted = [Requirement(line) for line in table_of(path)["project"]["dependencies"]]
    ours = [it.specifier for it in wanted if it.name.startswith("torchferry-")]
    assert all(it.contains(VERSION) for it in ours)
    assert not any(it.contains(f"{major}.{int(minor) + 1}.0") for it in ours)


def test_changelog_and_chart_have_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == VERSION
    chart = (ROOT / "deploy/helm/torchferry/Chart.yaml").read_text()
    assert re.findall(r'^(?:version: |appVersion: ")([\d.]+)', chart, re.MULTILINE) == [VERSION] * 2


@pytest.mark.parametrize("path", SIDES, ids=lambda path: path.parent.name)
def test_side_package_brings_the_licence(path):
    assert (path.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_classifiers_are_the_pythons_from_the_oldest_on():
    prefix = "Programming Language :: Python :: 3."
    named = [line for line in PROJECT["classifiers"] if line.startswith(prefix)]
    minors = [int(line.removeprefix(prefix)) for line in named]
    assert minors == [int(OLDEST.removeprefix("3.")) + number for number in range(len(minors))]


def test_style_is_checked_for_the_oldest_python():
    ruff = table_of(ROOT / "pyproject.toml")["tool"]["ruff"]
    assert ruff["target-version"] == f"py{OLDEST.replace('.', '')}"


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


def test_ferry_says_version_and_commit():
    done = CliRunner().invoke(main, ["--version"])
    known = f" (commit {commit()})" if commit() else ""
    assert (done.exit_code, done.output) == (0, f"ferry, version {version('torchferry')}{known}\n")


def test_commit_is_that_of_the_checkout_or_of_the_build_or_unknown(tmp_path):
    # Given
    def git(*words):
        own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", *own, *words], cwd=tmp_path, text=True).strip()

    (tmp_path / "ferry").mkdir()
    copy = shutil.copy(ROOT / "ferry" / "version.py", tmp_path / "ferry")

    def told():
        return runpy.run_path(str(copy))["commit"]()

    # Then
    assert told() == ""
    git("init", "--quiet")
    assert told() == ""  # nothing is committed
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    assert git("rev-parse", "HEAD").startswith(told())
    assert len(told()) == 12
    Path(copy).write_text(Path(copy).read_text() + "# changed\n")
    assert told().endswith("-dirty")
    # When it was built
    (tmp_path / "ferry" / "commit.txt").write_text("0123456789ab\n")
    assert told() == "0123456789ab"
