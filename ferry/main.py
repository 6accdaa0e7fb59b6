"""Runs the command `ferry`, which loads the module of a subcommand only when it is used."""

import importlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Mapping
from typing import cast

import click

_STDERR = 2
# What becomes of the output of a server must not end it, nor keep it from starting.
_SERVERS = frozenset({"ingress", "node", "serve", "torchserve", "up"})


MOVING = "torchferry-moving"

# Section of the help -> command -> its module, which is imported when the command is called, and
# what the help says. No help lists what is in no section; without a module MOVING brings it.
SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Serve": {
        "serve": ("serve", "Serve a model straight from its file."),
        "up": ("roles", "Run a whole server here."),
        "ingress": ("roles", "Run only the HTTP server."),
        "node": ("roles", "Run only this machine's workers."),
    },
    "Use a server that runs": {
        "models": ("models", "Register, scale and remove models."),
        "predict": ("predict", "Send files, print the answers."),
        "jobs": ("jobs", "Send predictions now, fetch answers later."),
        "status": ("models", "Show nodes, models, workers and queues."),
    },
    "Prepare archives": {
        "new": ("new", "Write a first model and its test."),
        "archive": ("archive", "Pack a model for serving."),
        "doctor": ("doctor", "Say what of an archive or a TorchServe will run here."),
    },
    "Move and measure": {
        "torchserve": ("torchserve", "Run like torchserve."),
        "shadow": ("", "Compare the answers of two servers."),
        "bench": ("bench", "Measure the gain by batching."),
    },
    "": {
        "check": ("check", "Judge a configuration, as JSON."),
        "container": ("container", "Start the image `server`."),
    },
}
COMMANDS = {name: it for commands in SECTIONS.values() for name, it in commands.items()}


class LazyGroup(click.Group):
    """Finds its commands in `COMMANDS`, and loads the module of the command that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        if not module:
            return added_command(cmd_name)
        found = getattr(importlib.import_module(f"ferry.commands.{module}"), cmd_name)
        return cast("click.Command", found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            if section:
                with formatter.section(section):
                    formatter.write_dl([(it.ljust(width), commands[it][1]) for it in commands])


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
