"""What `--help` lists for whom, and how it is written."""

import dataclasses
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from batching.settings.settings import Settings
from ferry.main import main
from ferry.role_settings import OF_INGRESS, OF_NODE, OF_WHOLE_SERVERS

ROOT = Path(__file__).parents[3]
NAMES = {spec.name for spec in dataclasses.fields(Settings)}


def help_of(*command: str) -> str:
    return CliRunner().invoke(main, [*command, "--help"], terminal_width=500).stdout


def listed(command: str) -> set[str]:
    found = re.findall(r"--([a-z][a-z0-9-]+)", help_of(command))
    return NAMES & {name.replace("-", "_") for name in found}


def test_help_lists_what_concerns_the_command() -> None:
    assert listed("up") == NAMES
    assert listed("ingress") == NAMES - OF_NODE - OF_WHOLE_SERVERS
    assert listed("node") == NAMES - OF_INGRESS - OF_WHOLE_SERVERS
    assert listed("webhooks") == NAMES - OF_INGRESS - OF_WHOLE_SERVERS


@pytest.mark.parametrize(
    ("folder", "unlisted"),
    [("ingress", OF_NODE), ("workers", OF_INGRESS)],
)
def test_help_leaves_out_only_what_the_role_does_not_read(
    folder: str, unlisted: frozenset[str]
) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / folder).rglob("*.py"))
    read = {name for name in unlisted if re.search(rf"settings\.{name}\b", code)}
    assert read == set()
    assert unlisted <= NAMES


def test_role_takes_the_settings_of_the_other_one_all_the_same() -> None:
    result = CliRunner().invoke(main, ["node", "--job-queue-size", "0"])
    assert "job_queue_size must be from 1 to" in result.stderr
