"""What `--help` lists for whom, and how it is written."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from batching.settings.setting import INGRESS, NODE, WHOLE_SERVER
from batching.settings.settings import SETTINGS
from ferry.lazy_commands import COMMANDS
from ferry.main import main
from tests.timing import assert_within

ROOT = Path(__file__).parents[3]
NAMES = {it.name for it in SETTINGS}


def read_by(*parts: str) -> set[str]:
    return {it.name for it in SETTINGS if it.read_by in parts}


def help_of(*command: str) -> str:
    return CliRunner().invoke(main, [*command, "--help"], terminal_width=500).stdout


def listed(command: str) -> set[str]:
    found = re.findall(r"--([a-z][a-z0-9-]+)", help_of(command))
    return NAMES & {name.replace("-", "_") for name in found}


def test_help_lists_what_concerns_the_command() -> None:
    assert listed("up") == NAMES
    assert listed("ingress") == NAMES - read_by(NODE, WHOLE_SERVER)
    assert listed("node") == NAMES - read_by(INGRESS, WHOLE_SERVER)


@pytest.mark.parametrize(("folder", "other"), [("ingress", NODE), ("workers", INGRESS)])
def test_help_leaves_out_only_what_the_role_does_not_read(folder: str, other: str) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / folder).rglob("*.py"))
    read = {name for name in read_by(other) if re.search(rf"settings\.{name}\b", code)}
    assert read == set()


def test_role_takes_the_settings_of_the_other_one_all_the_same() -> None:
    result = CliRunner().invoke(main, ["node", "--job-queue-size", "0"])
    assert "job_queue_size must be from 1 to" in result.stderr


def test_help_begins_with_an_example_and_has_sections() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    assert text.index("ferry serve model.py") < text.index("Options:") < text.index("Serve:")
    for one in COMMANDS:
        assert (f"  {one.name} " in text) == bool(one.section)
    assert "..." not in text.partition("Options:")[2]  # no sentence is cut
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("one", COMMANDS, ids=[one.name for one in COMMANDS])
def test_each_command_is_found_under_its_name(one) -> None:
    result = CliRunner().invoke(main, [one.name, "--help"])
    assert (result.exit_code, result.stdout.split()[:3]) == (0, ["Usage:", "main", one.name])


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


def test_help_of_a_server_is_in_sections() -> None:
    text = help_of("up")
    sections = [it.section for it in SETTINGS if it.section]
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings == list(dict.fromkeys(["Most used", *sections, "Options"]))
    most_used = text.partition("Most used:")[2].partition("Redis:")[0]
    for name in ["config", "port_base", *(it.name for it in SETTINGS if it.is_common)]:
        assert f"--{name.replace('_', '-')}" in most_used
    # Each option once, the hidden ones of a role left out with their sections
    assert len(re.findall(r"^  --redis-url ", text, re.MULTILINE)) == 1
    assert "Web pages of other origins" not in help_of("node")
