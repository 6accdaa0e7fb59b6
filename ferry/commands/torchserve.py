"""`ferry torchserve`: the command line of TorchServe, for its scripts and its manuals.

docs/moving-from-torchserve.md has the file of two lines that makes it the command `torchserve`. Its
defaults are TorchServe's, not those of `ferry up`: the server asks for tokens and registers no
models over HTTP until the flags say otherwise.
Source: TorchServe 0.12 ts/arg_parser.py, ts/model_server.py.
"""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import psutil

from batching.process.part import READY_VARIABLE
from batching.settings.loading import load_settings
from batching.settings.settings import DEFAULT_KEY_FILE, Settings, SettingsError
from batching.settings.snapshots import newest_snapshot
from ferry.console import warn
from ferry.options import settings_from_flags
from ferry.process_tree.supervisor import ReadyPipe
from ferry.process_tree.whole_server import run_server

# Programs that wait for TorchServe's process look for this, as SageMaker's inference toolkit does.
_JAVA_CLASS = "org.pytorch.serve.ModelServer"
# Words in the command line of a server, be it ours or TorchServe itself.
_MARKS = ("torchserve", _JAVA_CLASS)
_STOP_TIMEOUT_S = 60.0
_STOP_LOOK_S = 0.1
CONFIG_VARIABLE = "TS_CONFIG_FILE"
_DEFAULT_CONFIG = Path("config.properties")

DEFAULTS: Mapping[str, Any] = {
    "token_auth": True,
    "enable_model_api": False,
    "metrics_mode": "log",
    "access_log": True,
    "log_files": True,
    "page": "off",
}

_FILE = click.Path(path_type=Path)


class _GreedyModels(click.Command):
    """Takes `--models a.mar b.mar`, as argparse does; click takes one value for each flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        is_open = False
        for argument in args:
            is_value = not argument.startswith("-")
            # The flag itself stands before its first value already.
            is_further = is_open and is_value and spread[-1] != "--models"
            spread += ["--models", argument] if is_further else [argument]
            is_open = argument == "--models" or (is_open and is_value)
        return super().parse_args(ctx, spread)


@click.command(cls=_GreedyModels)
@click.option("-v", "--version", "action", flag_value="version", help="Print the version.")
@click.option("--start", "action", flag_value="start", help="Start the server, in the background.")
@click.option("--stop", "action", flag_value="stop", help="Stop the server.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground.")
@click.option("--ts-config", type=_FILE, help="Configuration file.")
@click.option("--model-store", type=_FILE, help="Folder of archives. Needed, here or in the file.")
@click.option("--workflow-store", type=_FILE, help="No effect: there are no workflows.")
@click.option(
    "--models",
    multiple=True,
    metavar="[NAME=]ARCHIVE...",
    help="Models to load at start, or `all`.",
)
@click.option("--log-config", type=_FILE, help="No effect: log_level and log_location do it.")
@click.option("--cpp-log-config", type=_FILE, help="No effect: there is no C++ backend.")
@click.option(
    "--ncs", "--no-config-snapshots", is_flag=True, help="Neither save snapshots nor look for one."
)
@click.option("--plugins-path", "--ppath", help="No effect: there is no Java virtual machine.")
@click.option(
    "--disable-token-auth",
    "--disable-token",
    "--dt",
    is_flag=True,
    default=None,
    help="Ask for no tokens.",
)
@click.option(
    "--enable-model-api",
    "--model-api-enabled",
    is_flag=True,
    default=None,
    help="Register and unregister models over HTTP.",
)
def torchserve(action: str | None, *, foreground: bool, ncs: bool, **given: Any) -> None:
    """Take TorchServe's command line: start in the background, stop, or stay in the foreground."""
    if action == "version":
        click.echo(f"TorchServe Version is {importlib.metadata.version('torchferry')}")
    elif action == "stop":
        _stop()
    elif running_server() is not None:
        click.echo(
            "TorchServe is already running, please use torchserve --stop to stop TorchServe."
        )
        sys.exit(1)
    elif foreground:
        _serve(chosen_settings(given, ncs=ncs))
    else:
        sys.exit(_start_in_background())


def find_config(
    ts_config: Path | None, environment: Mapping[str, str], *, is_reading_snapshots: bool
) -> Path | None:
    """Returns the configuration file to read; None when there is none."""
    named = environment.get(CONFIG_VARIABLE) or ts_config
    if named is not None:
        return _existing("--ts-config", Path(named))
    own = _DEFAULT_CONFIG if _DEFAULT_CONFIG.is_file() else None
    if not is_reading_snapshots:
        return own
    try:
        settings, _ = load_settings(own, environment)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    # A Redis that outlives its servers remembers the models itself.
    if settings.redis_url or not settings.config_snapshots:
        return own
    folder = settings.log_location / "config"
    return newest_snapshot(folder, _may_be_taken_over, report=warn) or own


def _may_be_taken_over(properties: Mapping[str, str]) -> bool:
    # `ferry up` asks for no tokens. Its settings would switch them off here, and switch on
    # registering over HTTP, without the operator's word.
    has_tokens = properties.get("token_authorization") != "false" or "key_file" in properties
    return has_tokens or properties.get("disable_token_authorization") == "true"


def chosen_settings(given: Mapping[str, Any], *, ncs: bool) -> Settings:
    """Returns the settings of the flags, the file and the environment."""
    if given["log_config"] is not None:
        _existing("--log-config", given["log_config"])
    config = find_config(given["ts_config"], os.environ, is_reading_snapshots=not ncs)
    flags = {
        "model_store": given["model_store"],
        "load_models": ",".join(given["models"]) or None,
        "disable_token_authorization": given["disable_token_auth"],
        "enable_model_api": given["enable_model_api"],
        "config_snapshots": False if ncs else None,
    }
    settings = settings_from_flags(config, flags, DEFAULTS)
    if settings.model_store is None:
        raise click.ClickException("Missing mandatory parameter --model-store")
    if not settings.model_store.is_dir():
        raise click.ClickException(f"--model-store directory not found: {settings.model_store}")
    return completed(settings)


def completed(settings: Settings) -> Settings:
    if not settings.disable_token_authorization or settings.enable_model_api:
        return settings
    # The operator wants no tokens, and no client can bring code: TorchServe's container, which
    # listens on all addresses, works as it is.
    return replace(settings, allow_open_management=True)


def _existing(flag: str, path: Path) -> Path:
    if not path.is_file():
        raise click.ClickException(f"{flag} file not found: {path}")
    return path


def _serve(settings: Settings) -> None:
    # Not through a link that another user has laid there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(pid_file(), flags, 0o644), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except OSError as error:
        raise click.ClickException(f"cannot write {pid_file()}: {error.strerror}") from error
    keys_path = settings.keys_path()
    try:
        run_server(settings, is_restoring=False)
    finally:
        _remove_pid(os.getpid())
        if keys_path == Path(DEFAULT_KEY_FILE):
            # Its keys are of no use any more; the next start makes others.
            with contextlib.suppress(OSError):
                keys_path.unlink()


def _start_in_background() -> int:
    """Starts the server, which outlives us; returns 0 once it is ready, else its exit code."""
    ready = ReadyPipe()
    [write_fd] = ready.writer()
    # Python ignores an option -X that it does not know.
    words = [sys.executable, "-P", "-X", _JAVA_CLASS, "-m", "ferry.main", *sys.argv[1:]]
    process = subprocess.Popen(  # noqa: S603 - ourselves, with the arguments that we were given
        [*words, "--foreground"],
        env={**os.environ, READY_VARIABLE: str(write_fd)},
        stdin=subprocess.DEVNULL,
        pass_fds=[write_fd],
        # Neither Ctrl-C nor the end of this terminal reaches it.
        start_new_session=True,
    )
    ready.hand_over()
    os.set_blocking(ready.read_fd, True)
    # Blocks until the server says that it is ready, or ends.
    while not ready.poll():
        if ready.is_closed:
            return process.wait() or 1
    return 0


def _stop() -> None:
    process = running_server()
    if process is None:
        click.echo("TorchServe is not currently running.")
        return
    click.echo(f"Stopping the server with pid {process.pid}.")
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGTERM)
        # A second start right after this must find the ports free.
        give_up_s = time.monotonic() + _STOP_TIMEOUT_S
        while not has_ended(process):
            if time.monotonic() > give_up_s:
                raise click.ClickException(
                    f"the server (pid {process.pid}) has not stopped within {_STOP_TIMEOUT_S:.0f} s"
                )
            time.sleep(_STOP_LOOK_S)
    _remove_pid(process.pid)
    click.echo("TorchServe has stopped.")


def pid_file() -> Path:
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def running_server() -> psutil.Process | None:
    """Returns the server that the pid file names, if it still runs; else removes the file."""
    try:
        process = psutil.Process(int(pid_file().read_text(encoding="ascii")))
        # The number may belong to another program by now, or another user may have written it.
        if process.pid != os.getpid() and any(mark in process.cmdline() for mark in _MARKS):
            return process
    except FileNotFoundError:
        return None
    except (OSError, ValueError, psutil.Error):
        pass
    with contextlib.suppress(OSError):
        pid_file().unlink()
    return None


def has_ended(process: psutil.Process) -> bool:
    """Returns whether the process is gone, or a zombie that no parent reaps."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _remove_pid(pid: int) -> None:
    """Removes the file, unless it names a server that was started since."""
    with contextlib.suppress(OSError, ValueError):
        if int(pid_file().read_text(encoding="ascii")) == pid:
            pid_file().unlink()
