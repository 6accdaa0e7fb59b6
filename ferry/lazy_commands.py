"""Loads the module of a command of `ferry` only when the command is used."""

import importlib
import importlib.metadata
from typing import NamedTuple

import click


class LazyCommand(NamedTuple):
    """One command: `module` has it under its own name. Without a `section` no help lists it.

    Without a `module` another distribution, MOVING, brings it.
    """

    name: str
    module: str
    section: str
    short_help: str


MOVING = "torchferry-moving"
# The entry points of other distributions that bring commands.
_GROUP = "ferry.commands"

_SERVE = "Serve"
_ASK = "Use a server that runs"
_PREPARE = "Prepare archives"
_COMPARE = "Move and measure"

# The help lists sections and commands in this order.
COMMANDS = (
    LazyCommand("serve", "ferry.commands.serve", _SERVE, "A model from its file, at once."),
    LazyCommand("up", "ferry.commands.roles", _SERVE, "Redis, ingress and one node, here."),
    LazyCommand("ingress", "ferry.commands.roles", _SERVE, "The HTTP server only."),
    LazyCommand("node", "ferry.commands.roles", _SERVE, "This machine's workers only."),
    LazyCommand("models", "ferry.commands.models", _ASK, "Register, scale and remove models."),
    LazyCommand("predict", "ferry.commands.predict", _ASK, "Send files, print the answers."),
    LazyCommand("jobs", "ferry.commands.jobs", _ASK, "Predictions that are done later."),
    LazyCommand("status", "ferry.commands.models", _ASK, "Nodes, models, workers and queues."),
    LazyCommand("new", "ferry.commands.new", _PREPARE, "A model to begin with, and its test."),
    LazyCommand("archive", "ferry.commands.archive", _PREPARE, "Pack a model for serving."),
    LazyCommand(
        "doctor",
        "ferry.commands.doctor",
        _PREPARE,
        "What of an archive, or of a TorchServe, will run here.",
    ),
    LazyCommand("torchserve", "ferry.commands.torchserve", _COMPARE, "TorchServe's command line."),
    LazyCommand("shadow", "", _COMPARE, "Compare two servers' answers."),
    LazyCommand("bench", "ferry.commands.bench", _COMPARE, "What batching does for a model."),
    LazyCommand("check", "ferry.commands.check", "", "What a configuration comes to, as JSON."),
    LazyCommand("container", "ferry.commands.container", "", "The entry point of the image."),
)


class LazyGroup(click.Group):
    """Finds its commands in `COMMANDS`, and loads the module of the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [it.name for it in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = next((it.module for it in COMMANDS if it.name == cmd_name), None)
        if module is None:
            return None
        if not module:
            return added_command(cmd_name)
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(it.name) for it in COMMANDS)
        for section in dict.fromkeys(it.section for it in COMMANDS if it.section):
            commands = [it for it in COMMANDS if it.section == section]
            rows = [(it.name.ljust(width), it.short_help) for it in commands]
            with formatter.section(section):
                formatter.write_dl(rows)


def added_command(name: str) -> click.Command:
    """Returns the command of this name that MOVING brings.

    Raises:
        UsageError: it is not installed.
    """
    for point in importlib.metadata.entry_points(group=_GROUP, name=name):
        command: click.Command = point.load()
        return command
    raise click.UsageError(f"this takes one package more: pip install {MOVING}")
