"""`ferry new` writes a model that works, and overwrites nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferry.commands.new import new
from ferry.serving.served_targets import read_target

KINDS = ("json", "text", "image", "onnx")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_tests_of_all_kinds_pass(folder):
    # Given
    for kind in KINDS:
        done = CliRunner().invoke(new, [f"my_{kind}", f"--{kind}"])
        assert done.exit_code == 0, done.output
    # When
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(words, capture_output=True, text=True, check=False)
    # Then
    assert f"{len(KINDS)} passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_model_is_served_under_its_files_name(folder, kind):
    # When
    CliRunner().invoke(new, ["bert_2_qa", f"--{kind}"])
    # Then
    [target] = read_target("bert_2_qa.py")
    assert (target.name, target.label) == ("bert_2_qa", "Bert2Qa")


def test_nothing_is_overwritten(folder):
    # Given
    Path("test_mine.py").write_text("mine")
    # When
    done = CliRunner().invoke(new, ["mine"])
    # Then
    assert (done.exit_code, done.output) == (
        1,
        "Error: test_mine.py is there already, and nothing was written.\n",
    )
    assert [path.name for path in folder.iterdir()] == ["test_mine.py"]


@pytest.mark.parametrize("name", ["My", "a-b", "2x", "json", "class", "ferry", "../x", ""])
def test_name_that_no_module_can_have_is_refused(folder, name):
    # When
    done = CliRunner().invoke(new, [name])
    # Then
    assert done.exit_code == 2
    assert list(folder.iterdir()) == []
