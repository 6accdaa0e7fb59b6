"""Asks the installed server how it reads a configuration."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

# Variables of this shell that are settings: the configuration is judged by itself.
_SERVER_VARIABLES = ("FERRY_", "TS_", "REDIS_URL", "LOG_LOCATION")


class Effect(StrEnum):
    SAME = "same"
    NOTE = "note"
    CHANGE = "must change"


class UnreadableTarget(click.ClickException):
    """Says that the target cannot be read."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class PartRow:
    """Says what becomes of one part; the text of what must change says how."""

    part: str
    effect: str
    text: str


def configuration_rows(
    config: Path | None, variables: Mapping[str, str | None] | None = None
) -> Iterator[PartRow]:
    """Yields what becomes of each key of the file, of its models, and of a start with it.

    Without the `variables` of a container, this machine is meant.

    Raises:
        UnreadableTarget: the file cannot be read.
    """
    options = [] if variables is None else ["--container", json.dumps(variables)]
    for row in _check(*([str(config)] if config else []), *options)["rows"]:
        yield PartRow(**row)


def torchserve_flags() -> dict[str, str]:
    """Returns the flags of `ferry torchserve`, and their help."""
    flags: dict[str, str] = _check()["flags"]
    return flags


def _check(*arguments: str) -> dict[str, Any]:
    # As a command, because this package must not import the server.
    done = subprocess.run(  # noqa: S603 - no argument is a program
        [sys.executable, "-P", "-m", "ferry.main", "check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith(_SERVER_VARIABLES)},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["`ferry check` failed"]
        raise UnreadableTarget(lines[-1].removeprefix("Error: "))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
