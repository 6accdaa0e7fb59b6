"""What a newcomer is told: targets, hooks and places are those that there are."""

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MOST_WORDS = 1100


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
