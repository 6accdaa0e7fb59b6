"""What `--help` lists for whom, and how it is written."""

import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from batching.settings.settings import SETTINGS
from ferry.main import COMMANDS, main
from tests.timing import assert_within


def help_of(*command: str) -> str:
    return CliRunner().invoke(main, [*command, "--help"], terminal_width=500).stdout


@pytest.mark.parametrize("command", ["up", "ingress", "node"])
def test_help_of_a_server_has_all_settings_in_sections(command: str) -> None:
    text = help_of(command)
    for it in SETTINGS:
        assert len(re.findall(rf"^  .*--{it.name.replace('_', '-')}\b", text, re.M)) >= 1, it.name
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    sections = [it.section for it in SETTINGS if it.section]
    assert headings == list(dict.fromkeys(["Most used", *sections, "Options"]))
    most_used = text.partition("Most used:")[2].partition("Redis:")[0]
    for name in ["config", *(it.name for it in SETTINGS if it.is_common)]:
        assert f"--{name.replace('_', '-')}" in most_used


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_found_under_its_name(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert (result.exit_code, result.stdout.split()[:3]) == (0, ["Usage:", "main", name])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nosuch"]])
def test_ferry_itself_answers_at_once(words: list[str]) -> None:
    # Computing time, and the best of some: other tests run beside this one.
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "ferry.main", *words], check=False, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert_within(min(seconds), 0.2)
