"""`ferry container`: the entry point of the image `server`, which starts as TorchServe's does.

Source: TorchServe 0.12 docker/dockerd-entrypoint.sh, docker/config.properties.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from batching.settings.files import read_properties
from batching.settings.settings import SettingsError
from ferry.commands.torchserve import CONFIG_VARIABLE, has_ended, running_server
from ferry.options import UnusableSettings

CONFIG = Path("/home/model-server/config.properties")
_SERVE, _TORCHSERVE = "serve", "torchserve"
_NO_START = frozenset({"--stop", "-v", "--version", "--help"})
# The process says `torchserve` in its command line: `torchserve --stop` knows it by that.
_FOREGROUND = (sys.executable, "-P", "-m", "ferry.main", _TORCHSERVE, "--foreground")
_LOOK_S = 1.0
_NOT_FOUND = 127
_BY_SIGNAL = 128


@click.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def container(command: tuple[str, ...]) -> None:
    """Start as TorchServe's image does: `serve` (or nothing), or a command of its user's."""
    name, *arguments = command or (_SERVE,)
    if name == _SERVE:
        config = ("--ts-config", str(CONFIG), "--disable-token-auth")
        _become([*_FOREGROUND, *config, *arguments], _served(os.environ))
    if name == _TORCHSERVE and not _NO_START & set(arguments):
        _become([*_FOREGROUND, *arguments], os.environ)
    # A manifest may have the whole line as one word; TorchServe's script evaluates what it gets.
    words = ["sh", "-c", name] if not arguments and " " in name else [name, *arguments]
    sys.exit(_run(words))


def _served(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with what the platform's variables stand for, and says what that is.

    Raises:
        UnusableSettings: the server cannot start with them.
    """
    # It loads parts of ingress and workers, which no other command of this process needs.
    from ferry.container.platforms import platform_variables  # noqa: PLC0415

    config = Path(environment.get(CONFIG_VARIABLE) or CONFIG)
    try:
        properties = read_properties(config) if config.is_file() else {}
        found = platform_variables(environment, properties)
    except SettingsError as error:
        raise UnusableSettings(str(error)) from error
    with contextlib.suppress(OSError):  # the server starts whatever becomes of its output
        for name, text in found.items():
            click.echo(f"{name}={text}")
    return {**environment, **found}


def _become(words: list[str], environment: Mapping[str, str]) -> None:
    # The server itself gets the signals then, and its exit code is the container's.
    os.execve(words[0], words, environment)  # noqa: S606 - ourselves


def _run(words: Sequence[str]) -> int:
    """Runs the command, then stays while a server runs that it started; returns its exit code."""
    try:
        process = subprocess.Popen(words)  # noqa: S603 - the container's own user chose it
    except OSError as error:
        raise _Unknown(f"{words[0]}: {error.strerror}") from error

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)
        if (server := running_server()) is not None:
            server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    exit_code = process.wait()
    # TorchServe's script goes on for ever after the command; here a stopped server ends it.
    if (server := running_server()) is not None:
        while not has_ended(server):
            time.sleep(_LOOK_S)
    return exit_code if exit_code >= 0 else _BY_SIGNAL - exit_code


class _Unknown(click.ClickException):
    exit_code = _NOT_FOUND
