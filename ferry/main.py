"""Runs the command `ferry`, which loads the module of a subcommand only when it is used."""

import importlib
import importlib.metadata
import io
import os
import sys
from typing import NamedTuple, cast

import click

_STDERR = 2
# What becomes of the output of a server must not end it, nor keep it from starting.
_SERVERS = frozenset({"ingress", "node", "serve", "torchserve", "up"})


class LazyCommand(NamedTuple):
    """Names a command and the module that has it, which is imported when the command is called.

    No help lists it without a `section`. Without a `module` the distribution MOVING brings it.
    """

    name: str
    module: str
    section: str
    short_help: str


MOVING = "torchferry-moving"
_SERVE = "Serve"
_ASK = "Use a server that runs"
_PREPARE = "Prepare archives"
_COMPARE = "Move and measure"

# The help lists sections and commands in this order.
COMMANDS = (
    LazyCommand("serve", "serve", _SERVE, "Serve a model straight from its file."),
    LazyCommand("up", "roles", _SERVE, "Run a whole server here."),
    LazyCommand("ingress", "roles", _SERVE, "Run only the HTTP server."),
    LazyCommand("node", "roles", _SERVE, "Run only this machine's workers."),
    LazyCommand("models", "models", _ASK, "Register, scale and remove models."),
    LazyCommand("predict", "predict", _ASK, "Send files, print the answers."),
    LazyCommand("jobs", "jobs", _ASK, "Send predictions now, fetch answers later."),
    LazyCommand("status", "models", _ASK, "Show nodes, models, workers and queues."),
    LazyCommand("new", "new", _PREPARE, "Write a first model and its test."),
    LazyCommand("archive", "archive", _PREPARE, "Pack a model for serving."),
    LazyCommand(
        "doctor", "doctor", _PREPARE, "Say what of an archive or a TorchServe will run here."
    ),
    LazyCommand("torchserve", "torchserve", _COMPARE, "Run like torchserve."),
    LazyCommand("shadow", "", _COMPARE, "Compare the answers of two servers."),
    LazyCommand("bench", "bench", _COMPARE, "Measure the gain by batching."),
    LazyCommand("check", "check", "", "Judge a configuration, as JSON."),
    LazyCommand("container", "container", "", "Start the image `server`."),
)


class LazyGroup(click.Group):
    """Finds its commands in `COMMANDS`, and loads the module of the command that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [it.name for it in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, module, *_ in COMMANDS:
            if name == cmd_name and not module:
                return added_command(name)
            if name == cmd_name:
                found = getattr(importlib.import_module(f"ferry.commands.{module}"), name)
                return cast("click.Command", found)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(it.name) for it in COMMANDS)
        for section in dict.fromkeys(it.section for it in COMMANDS if it.section):
            commands = [it for it in COMMANDS if it.section == section]
            with formatter.section(section):
                formatter.write_dl([(it.name.ljust(width), it.short_help) for it in commands])


def added_command(name: str) -> click.Command:
    """Returns the command of this name that MOVING brings.

    Raises:
        UsageError: it is not installed.
    """
    for point in importlib.metadata.entry_points(group="ferry.commands", name=name):
        return cast("click.Command", point.load())
    raise click.UsageError(f"this takes one package more: pip install {MOVING}")


def _print_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from ferry.version import version_line  # noqa: PLC0415 - no other command needs it

        click.echo(version_line())
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the commit, and exit.",
)
def main() -> None:
    """Serve PyTorch models in batches from a Redis queue.

    \b
    For example, in two terminals:
      ferry serve model.py
      curl localhost:8080/predictions/model -d '[1, 2, 3, 4]'

    `ferry COMMAND --help` explains a command.
    """  # noqa: D301 - click's mark of lines that stay as they are
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escapes characters that standard output cannot encode, as standard error does.
        sys.stdout.reconfigure(errors="backslashreplace")
    if click.get_current_context().invoked_subcommand in _SERVERS:
        # Only here: no other command needs any part of a server.
        from batching.process.outputs import free_outputs  # noqa: PLC0415

        free_outputs()


def _open_missing_streams() -> None:
    """Opens /dev/null in place of each standard stream that this process was started without.

    Otherwise the next file or socket gets number 1 or 2, and what C code and children print there
    goes into it: into the connection to Redis, for example. Neither Python nor click prevents that.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


if __name__ == "__main__":
    main()
