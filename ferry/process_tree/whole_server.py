"""A whole server in one process tree: Redis, unless there is one, ingress and one node."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from batching.process.child_process import spawn
from batching.process.entry_point import EXIT_UNUSABLE
from batching.process.readiness import READY_VARIABLE, notify_ready
from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import newest_snapshot, read_snapshot
from ferry.addresses import check_free
from ferry.console import err, out, spinner, warn
from ferry.open_files import allow_many_files
from ferry.options import UnusableSettings, require_store
from ferry.process_tree.embedded_redis import (
    START_TIMEOUT_S,
    EmbeddedRedis,
    EmbeddedRedisError,
    find_server,
)
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.ready_pipe import ReadyPipe
from ferry.process_tree.supervisor import Interrupted, Part, StartFailed, Supervisor

# How the time for a clean stop is divided: the ingress waits for answers in flight, the node then
# has little left to finish, Redis nothing. The rest is for the operating system.
INGRESS_SHARE, NODE_SHARE, REDIS_SHARE = 0.6, 0.25, 0.05
# A child begins to give up a little before its supervisor gives it up.
_CHILD_SHARE = 0.9

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the children say of themselves."""

    node: ReadyPipe
    ingress: ReadyPipe

    def close(self) -> None:
        """Nobody listens any more."""
        self.node.close()
        self.ingress.close()


def run_server(settings: Settings, *, redis_memory: str = "0", is_restoring: bool = True) -> None:
    """Serves until a signal asks to stop.

    Args:
        settings: without `redis_url` a Redis of its own is started.
        redis_memory: memory limit of that Redis; 0: none.
        is_restoring: what the newest snapshot holds is registered again, if that Redis is new.

    Raises:
        ClickException: it cannot start; nothing of it is left.
    """
    require_store(settings)
    settings = _absolute(settings)
    allow_many_files()  # before anything is started, which inherits it
    check_free(settings.addresses().values())
    with contextlib.ExitStack() as cleanup:
        redis = None if settings.redis_url else _embedded_redis(redis_memory)
        settings = _with_snapshots(
            settings, is_embedded=redis is not None, is_restoring=is_restoring
        )
        ready = Readiness(ReadyPipe(), ReadyPipe())
        cleanup.callback(ready.close)
        logs = None
        if settings.log_files:
            logs = cleanup.enter_context(LogFiles(settings.log_location, sys.stdout.buffer))
        if redis is not None:
            # Next to the supervisor: where it does not hear signals, SIGTERM ends this process at
            # once, and nobody would remove the folder.
            cleanup.callback(redis.remove_folder)
            settings = replace(settings, redis_url=redis.url)
        report = print_report if logs is None else logs.say
        supervisor = Supervisor(
            _parts(settings, redis, ready, logs),
            stop_timeout_s=settings.drain_timeout_s,
            report=report,
        )
        cleanup.enter_context(supervisor)
        _serve(supervisor, settings, redis, ready, report)


def print_report(line: str) -> None:
    """One line of the supervisor's own is on standard error, if anybody reads it."""
    # Rich would end the process where nobody does, and the server with it.
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _absolute(settings: Settings) -> Settings:
    """The same settings for children, and for a later start, in whatever folder they are."""
    return replace(settings, key_file=settings.keys_path() or settings.key_file).absolute()


def _with_snapshots(settings: Settings, *, is_embedded: bool, is_restoring: bool) -> Settings:
    """Returns the settings with folder and file of snapshots.

    By default only for an embedded Redis.
    """
    folder: Path | None = settings.snapshot_dir
    if not settings.config_snapshots:
        folder = None
    elif is_embedded and folder is None:
        folder = settings.log_location / "config"
    file = settings.snapshot_file
    if folder is not None and file is None and is_embedded and is_restoring:
        address = settings.management_address
        file = newest_snapshot(
            folder, lambda saved: saved.get("management_address") == address, report=warn
        )
    return replace(settings, snapshot_dir=folder, snapshot_file=file)


def _serve(
    supervisor: Supervisor,
    settings: Settings,
    redis: EmbeddedRedis | None,
    ready: Readiness,
    report: Report,
) -> None:
    try:
        _start(supervisor, settings, redis, ready)
        _announce(settings, redis, ready)
        supervisor.run()
    except Interrupted:
        pass
    except StartFailed as error:
        supervisor.stop()
        is_unusable = error.exit_code == EXIT_UNUSABLE
        failure = UnusableSettings if is_unusable else click.ClickException
        raise failure(f"{error}; the lines above say why") from error
    except (TimeoutError, OSError) as error:
        supervisor.stop()
        raise click.ClickException(f"cannot start: {error}") from error
    report(f"Stopping on {supervisor.stop_reason}.")
    supervisor.stop()


def _start(
    supervisor: Supervisor, settings: Settings, redis: EmbeddedRedis | None, ready: Readiness
) -> None:
    if redis is not None:
        supervisor.start("redis")
        supervisor.wait_until(redis.answers, timeout_s=START_TIMEOUT_S)
    supervisor.start("node", "ingress")
    models = f" and loading {settings.load_models}" if settings.load_models else ""
    with spinner(f"Starting{models}"):
        # Registering a model takes a node, so the server has started only when there is one.
        for pipe in (ready.node, ready.ingress):
            supervisor.wait_until(pipe.poll, pipe.read_fd)


def _announce(settings: Settings, redis: EmbeddedRedis | None, ready: Readiness) -> None:
    for failure in ready.ingress.failures:
        words = ": ".join(str(value) for value in failure.values())
        err().print(f"[red]not loaded:[/] {escape(words)}", soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for role, address in settings.addresses().items():
        table.add_row(role.capitalize(), escape(address))
    if (keys_path := settings.keys_path()) is not None:
        table.add_row("Tokens", f"in {escape(str(keys_path))}")
    table.add_row("Models", escape(models_words(settings, is_embedded=redis is not None)))
    table.add_row("Redis", _redis_words(settings, redis))
    out().print(table)
    # The line that scripts written for TorchServe wait for.
    click.echo("Model server started.")
    sys.stdout.flush()
    notify_ready()


def models_words(settings: Settings, *, is_embedded: bool) -> str:
    """Which models the server begins with."""
    words = [] if is_embedded else ["those that Redis remembers"]
    if is_embedded and settings.snapshot_file is not None:
        with contextlib.suppress(SettingsError):  # which the ingress has said
            saved = read_snapshot(settings.snapshot_file)
            words += dict.fromkeys(version.model_name for version in saved)
    words += [settings.load_models] if settings.load_models else []
    return ", ".join(words) or "none yet: `ferry models register`"


def _redis_words(settings: Settings, redis: EmbeddedRedis | None) -> str:
    if redis is not None:
        return f"embedded, {redis.program.origin}"
    # The URL may hold a password, and this line may end in a log.
    return escape(RedisUrl.parse(settings.redis_url).without_secrets())


def _embedded_redis(maxmemory: str) -> EmbeddedRedis:
    try:
        return EmbeddedRedis(find_server(), maxmemory=maxmemory)
    except EmbeddedRedisError as error:
        raise click.ClickException(str(error)) from error


def _parts(
    settings: Settings, redis: EmbeddedRedis | None, ready: Readiness, logs: LogFiles | None
) -> list[Part]:
    drain_s = settings.drain_timeout_s * _CHILD_SHARE

    def launch_node() -> subprocess.Popen[bytes]:
        own = replace(settings, drain_timeout_s=drain_s * NODE_SHARE)
        return _launch("workers", own, ready.node, logs)

    def launch_ingress() -> subprocess.Popen[bytes]:
        own = replace(settings, drain_timeout_s=drain_s * INGRESS_SHARE)
        return _launch("ingress", own, ready.ingress, logs)

    parts = [
        Part("node", launch_node, NODE_SHARE),
        Part("ingress", launch_ingress, INGRESS_SHARE),
    ]
    return parts if redis is None else [Part("redis", redis.launch, REDIS_SHARE), *parts]


def _launch(
    package: str, settings: Settings, ready: ReadyPipe, logs: LogFiles | None
) -> subprocess.Popen[bytes]:
    env = {**os.environ, **settings.to_environment()}
    env[READY_VARIABLE] = ""  # which tells a part that is started again from the first one
    fds = ready.writer()
    for fd in fds:
        env[READY_VARIABLE] = str(fd)
    # -P: a folder `workers` in the user's current directory must not be run instead of ours.
    process = spawn(
        [sys.executable, "-P", "-m", package],
        env,
        fds,
        stdout=None if logs is None else logs.stdout_fd,
        stderr=None if logs is None else logs.stderr_fd,
    )
    ready.hand_over()
    return process
