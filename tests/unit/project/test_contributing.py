"""What a newcomer is told: targets, hooks, forms and places are those that there are."""

import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from ferry.main import main

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MOST_WORDS = 1100
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# In the order in which pip is given them: the client first, as the others need it.
PACKAGES = sorted(ROOT.glob("packages/*/"), key=lambda path: (path.name != "client", path.name))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_make_help_has_a_line_for_every_target():
    # Given
    [targets] = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    # When
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    # Then
    named = re.findall(r"^make (\S+) +\S", done.stdout, re.MULTILINE)
    assert sorted(named) == sorted(targets.split()), "a line that begins with ## above each target"
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def test_hooks_run_the_commands_of_make_check():
    # Given
    [recipe] = re.findall(r"^check: .*\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    # When
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = [hook for repository in yaml.safe_load(text)["repos"] for hook in repository["hooks"]]
    # Then
    assert [hook["entry"] for hook in hooks] == commands
    assert {hook["language"] for hook in hooks} == {"system"}
    assert not any(hook["pass_filenames"] for hook in hooks)


def test_guide_is_short_and_names_what_is_there():
    places = re.findall(r"`([\w.-]+/[\w./-]*)`", GUIDE)
    places += re.findall(r"-e (packages/\w+)", GUIDE)
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert len(GUIDE.split()) <= MOST_WORDS


def test_guide_installs_every_package_and_extras_that_there_are():
    # Given
    [line] = re.findall(r"\.venv/bin/pip install (-e packages.+)", GUIDE)
    *folders, root = re.findall(r"-e (\S+)", line)
    # Then
    assert folders == [f"packages/{path.name}" for path in PACKAGES]
    named = re.fullmatch(r"'\.\[(.+)\]'", root)[1].split(",")
    assert {"test", "dev"} <= set(named) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_form_of_an_issue_asks_for_what_ferry_can_tell(form):
    # Given
    text = form.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    fields = {part["id"]: part for part in content["body"] if part["type"] != "markdown"}
    # Then
    assert content["name"]
    assert content["description"]
    assert any(part.get("validations", {}).get("required") for part in fields.values())
    assert "`ferry --version`" in fields["version"]["attributes"]["description"]
    # And each command in it is one
    for words in re.findall(r"`ferry ([a-z][a-z ]*)", text):
        command: click.Command = main
        for word in words.split():
            assert isinstance(command, click.Group), words
            found = command.get_command(click.Context(command), word)
            assert found is not None, words
            command = found


def test_there_are_forms_for_bugs_and_features():
    assert [form.stem for form in FORMS] == ["bug", "feature"]
