"""Runs a whole server in one process tree, or the ingresses of a host alone."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import click
from rich.markup import escape

from batching.process.child_process import spawn
from batching.process.cores import usable_cores
from batching.process.outputs import outlet
from batching.process.part import LAUNCH_VARIABLE, READY_VARIABLE, Launch, notify_ready
from batching.process.siblings import Siblings
from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import newest_snapshot, read_snapshot
from ferry.console import err, warn
from ferry.options import UnusableSettings
from ferry.process_tree.embedded_redis import (
    FSYNC_EVERY_SECOND,
    START_TIMEOUT_S,
    EmbeddedRedis,
    find_server,
    lock_data,
    short_temporary_folder,
)
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.start_checks import (
    allow_many_files,
    check_free,
    require_redis,
    require_store,
)
from ferry.process_tree.supervisor import (
    Interrupted,
    ProcessPart,
    ReadyPipe,
    StartFailed,
    Supervisor,
)
from ingress.role import has_page

# How the time for a clean stop is divided: the ingress waits for answers in flight, the node then
# has little left to finish, Redis nothing. The rest is for the operating system.
INGRESS_SHARE, NODE_SHARE, REDIS_SHARE = 0.6, 0.25, 0.05
# A child begins to give up a little before its supervisor gives it up.
_CHILD_SHARE = 0.9
# After its drain, an ingress closes its connections and ends.
_END_S = 2.0
_MOST_INGRESSES = 4
_CORES_EACH = 4

Report = Callable[[str], None]
_print_report: Report = functools.partial(click.echo, err=True)


class Occupant(Protocol):
    """Brings models to a server, as `ferry serve` does."""

    def begin(self, settings: Settings) -> None:
        """Does what needs Redis only; called when it answers, while the other parts start."""

    def announce(self, supervisor: Supervisor) -> None:
        """Says that all parts are ready, in place of the server's own words."""


def run_server(
    settings: Settings,
    *,
    redis_memory: str = "0",
    redis_fsync: str = FSYNC_EVERY_SECOND,
    is_restoring: bool = True,
    needs_redis: bool = False,
    occupant: Occupant | None = None,
) -> None:
    """Serves until a signal asks to stop; without `redis_url`, with a Redis of its own.

    `is_restoring` registers what the last snapshot holds; `needs_redis` fails soon where the Redis
    of `redis_url` does not answer. A ClickException says that the server cannot start; all of its
    processes have ended.
    """
    require_store(settings)
    # Children, and a later start, may run in another folder.
    settings = replace(settings, key_file=settings.keys_path() or settings.key_file).absolute()
    allow_many_files()  # before anything is started, which inherits it
    check_free(settings.addresses().values())
    if settings.redis_url and needs_redis:
        require_redis(settings)
    with contextlib.ExitStack() as cleanup:
        redis = None
        if not settings.redis_url:
            program, data = find_server(), lock_data(settings, redis_fsync)
            redis = EmbeddedRedis(program, maxmemory=redis_memory, data=data)
            if data is not None:
                cleanup.callback(data.release)
            settings = replace(settings, redis_append_only=data is not None)
        settings = _with_snapshots(settings, redis is not None, is_restoring)
        logs, report = None, _print_report
        if settings.log_files:
            logs = cleanup.enter_context(LogFiles(settings.log_location, outlet(1).write_line))
            report = logs.say
        common_folder = _common_folder(count_by_cores(settings), cleanup)
        if redis is not None:
            # Right before the supervisor starts: until it handles signals, a SIGTERM would end
            # this process at once and leave the folder.
            cleanup.callback(redis.close)
            settings = replace(settings, redis_url=redis.url)
            if saved := _saved_models(settings):
                models, file = ", ".join(saved), settings.snapshot_file
                report(f"Restoring {models} from {file} (--no-config-snapshots: without)")
        server = _WholeServer(settings, redis, report, occupant, PartMaker(Launch.AWAITED, logs))
        parts = server.parts(common_folder)
        _serve(parts, settings.drain_timeout_s, report, server.start)


def run_ingresses(settings: Settings) -> None:
    """Runs `ingress_processes` ingresses, until a signal asks to stop."""
    check_free(settings.addresses().values())
    stop_s = settings.drain_delay_s + settings.drain_timeout_s + _END_S
    count, maker = max(1, settings.ingress_processes), PartMaker(Launch.ALONE)
    with contextlib.ExitStack() as cleanup:
        ingresses = maker.ingresses(settings, count, _common_folder(count, cleanup), 1.0)
        _serve(ingresses, stop_s, _print_report, lambda it: _start_ingresses(it, ingresses))


def _common_folder(count: int, cleanup: contextlib.ExitStack) -> Path:
    """Makes the folder that several ingresses share."""
    if count == 1:
        return Path()
    folder = short_temporary_folder("ferry-ingress-")
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _with_snapshots(settings: Settings, is_embedded: bool, is_restoring: bool) -> Settings:
    """Returns the settings with folder and file of snapshots: by default of an embedded Redis."""
    folder, file = None, settings.snapshot_file
    if settings.config_snapshots:
        own = settings.log_location / "config" if is_embedded else None
        folder = settings.snapshot_dir or own
    if folder is not None and file is None and is_embedded and is_restoring:
        address = settings.management_address
        file = newest_snapshot(
            folder, lambda saved: saved.get("management_address") == address, report=warn
        )
    return replace(settings, snapshot_dir=folder, snapshot_file=file)


def _serve(
    parts: list[ProcessPart],
    stop_timeout_s: float,
    report: Report,
    start: Callable[[Supervisor], None],
) -> None:
    """Calls `start`, keeps the parts alive until a signal asks to stop, and stops them."""
    with Supervisor(parts, stop_timeout_s=stop_timeout_s, report=report) as supervisor:
        try:
            start(supervisor)
            supervisor.run()
        except Interrupted:
            pass
        except StartFailed as error:
            is_unusable = error.exit_code == UnusableSettings.exit_code
            failure = UnusableSettings if is_unusable else click.ClickException
            raise failure(f"{error}; the lines above say why") from error
        except OSError as error:
            raise click.ClickException(f"cannot start: {error}") from error
        finally:
            if supervisor.stop_reason:
                report(f"Stopping on {supervisor.stop_reason}.")
            supervisor.stop()


@dataclass(frozen=True, slots=True)
class PartMaker:
    """Makes the parts of one server that are Python processes; `launch` is how each is started."""

    launch: Launch
    logs: LogFiles | None = None

    def part(
        self,
        name: str,
        package: str,
        settings: Settings,
        stop_share: float,
        siblings: Siblings | None = None,
    ) -> ProcessPart:
        ready, logs = ReadyPipe(), self.logs

        def start() -> subprocess.Popen[bytes]:
            env = {**os.environ, **settings.to_environment()}
            env |= siblings.to_environment() if siblings else {}
            env |= logs.variables if logs else {}
            env |= {READY_VARIABLE: "", LAUNCH_VARIABLE: Launch.AGAIN}
            for fd in (fds := ready.writer()):
                env |= {READY_VARIABLE: str(fd), LAUNCH_VARIABLE: self.launch}
            # -P: a folder `workers` in the user's current directory must not be run instead.
            argv = [sys.executable, "-P", "-m", package]
            outputs = (logs.stdout_fd, logs.stderr_fd) if logs else (None, None)
            process = spawn(argv, env, fds, *outputs)
            ready.hand_over()
            return process

        return ProcessPart(name, start, stop_share, package, ready)

    def ingresses(
        self, settings: Settings, count: int, folder: Path, stop_share: float
    ) -> list[ProcessPart]:
        names = ["ingress", *(f"ingress {number}" for number in range(2, count + 1))]
        return [
            self.part(name, "ingress", settings, stop_share, Siblings(number, count, folder))
            for number, name in enumerate(names, 1)
        ]


def count_by_cores(settings: Settings) -> int:
    """Returns how many ingress processes `ferry up` runs: a setting, else by its cores."""
    if settings.ingress_processes or settings.inference_address.startswith("unix:"):
        return settings.ingress_processes or 1
    return max(1, min(_MOST_INGRESSES, usable_cores() // _CORES_EACH))


def _start_ingresses(supervisor: Supervisor, ingresses: list[ProcessPart]) -> None:
    """Starts the ingresses and waits until all are ready.

    The first one starts alone and loads the startup models: before that, no other ingress may tell
    a client that the server is ready.
    """
    for together in (ingresses[:1], ingresses[1:]):
        supervisor.start(*together)
        supervisor.wait_until_ready(*together)


@dataclass
class _WholeServer:
    """Starts the parts of one server in their order, and says when it is ready."""

    settings: Settings
    redis: EmbeddedRedis | None
    report: Report
    occupant: Occupant | None
    maker: PartMaker

    def parts(self, common_folder: Path) -> list[ProcessPart]:
        """Makes the parts in the order in which the supervisor starts them."""
        settings = self.settings
        of_ingress, of_node = (
            replace(settings, drain_timeout_s=settings.drain_timeout_s * _CHILD_SHARE * share)
            for share in (INGRESS_SHARE, NODE_SHARE)
        )
        count = count_by_cores(settings)
        self._node = self.maker.part("node", "workers", of_node, NODE_SHARE)
        self._ingresses = self.maker.ingresses(of_ingress, count, common_folder, INGRESS_SHARE)
        self._redis = [ProcessPart("redis", self.redis.launch, REDIS_SHARE)] if self.redis else []
        return [*self._redis, self._node, *self._ingresses]

    def start(self, supervisor: Supervisor) -> None:
        if self.redis is not None:
            self._start_redis(supervisor, self.redis)
        supervisor.start(self._node)
        if self.occupant is not None:
            self.occupant.begin(self.settings)
        elif (console := err()).is_terminal:
            named = self.settings.load_models
            # No spinner: the parts write their log lines to the same terminal.
            console.print(escape(f"Starting and loading {named}" if named else "Starting"))
        _start_ingresses(supervisor, self._ingresses)
        # Registering a model takes a node, so the server has started only when there is one.
        supervisor.wait_until_ready(self._node)
        if self.occupant is None:
            self._announce()
        else:
            self.occupant.announce(supervisor)

    def _start_redis(self, supervisor: Supervisor, redis: EmbeddedRedis) -> None:
        """Starts Redis and waits until it answers, without a limit while it reads its file."""
        supervisor.start(*self._redis)
        try:
            supervisor.wait_until(
                lambda: redis.answers() or redis.is_loading(), timeout_s=START_TIMEOUT_S
            )
            supervisor.wait_until(redis.answers)
        except StartFailed:
            self.report(f"redis: {redis.last_words() or 'it said nothing'}")
            if redis.data is not None:
                self.report(
                    f"Redis cannot go on with its data in {redis.data.folder}. To start without "
                    "the jobs in there, move it away, or choose another folder with --data-dir."
                )
            raise
        if redis.data is not None and redis.data.had_file:
            # Only here: a server whose Redis is new needs no client in this process.
            from batching.store.clients import connect  # noqa: PLC0415 - see above
            from batching.store.registry.registry import Registry  # noqa: PLC0415 - see above

            # The snapshot fills the registry again, before any node looks (ADR 0031).
            with contextlib.closing(connect(redis.url)) as client:
                Registry(client).forget()

    def _announce(self) -> None:
        """Prints what was not loaded and where the server listens, and reports it ready."""
        ready = self._ingresses[0].ready
        for failure in ready.failures if ready is not None else ():
            complaint = ": ".join(str(value) for value in failure.values())
            err().print(f"[red]not loaded:[/] {escape(complaint)}", soft_wrap=True)
        settings, redis = self.settings, self.redis
        rows = {role.capitalize(): address for role, address in settings.addresses().items()}
        if has_page(settings) and settings.inference_address.startswith("http"):
            rows["Page"] = f"{settings.inference_address}/"
        if (keys_path := settings.keys_path()) is not None:
            rows["Tokens"] = f"in {keys_path}"
        names = _saved_models(settings) if redis else ["those that Redis remembers"]
        names += [settings.load_models] if settings.load_models else []
        rows["Models"] = ", ".join(names) or "none yet: `ferry models register ARCHIVE` brings one"
        if redis is None:
            # The URL may hold a password, and this line may end in a log.
            rows["Redis"] = RedisUrl.parse(settings.redis_url).without_secrets()
        else:
            kept = f"keeps jobs in {redis.data.folder.parent}" if redis.data else "in memory only"
            rows["Redis"] = f"embedded, {redis.program.origin}; {kept}"
        for name, text in rows.items():
            click.echo(f"{name:<12}{text}")
        # The line that scripts written for TorchServe wait for.
        click.echo("Model server started.")
        notify_ready()


def _saved_models(settings: Settings) -> list[str]:
    if settings.snapshot_file is None:
        return []
    with contextlib.suppress(SettingsError):  # the ingress reports it
        return list(dict.fromkeys(it.model_name for it in read_snapshot(settings.snapshot_file)))
    return []
