"""Runs a whole server in one process tree, or the ingresses of a host alone."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import click
from rich.markup import escape
from rich.table import Table

from batching.process.entry_point import EXIT_UNUSABLE
from batching.process.outputs import outlet
from batching.process.readiness import Launch, notify_ready
from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import SavedVersion, newest_snapshot, read_snapshot
from ferry.console import err, out, warn
from ferry.open_files import allow_many_files
from ferry.options import UnusableSettings, require_store
from ferry.process_tree.embedded_redis import EmbeddedRedis
from ferry.process_tree.free_addresses import check_free
from ferry.process_tree.ingresses import Ingresses, count_by_cores, prepared_ingresses
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.part_process import PartProcess
from ferry.process_tree.ready_pipe import ReadyPipe
from ferry.process_tree.redis_data import FSYNC_EVERY_SECOND
from ferry.process_tree.redis_part import (
    NAME,
    prepared_redis,
    require_redis,
    start_redis,
    words_of,
)
from ferry.process_tree.supervisor import Interrupted, Part, StartFailed, Supervisor
from ingress.page.page_switch import has_page

# How the time for a clean stop is divided: the ingress waits for answers in flight, the node then
# has little left to finish, Redis nothing. The rest is for the operating system.
INGRESS_SHARE, NODE_SHARE, REDIS_SHARE = 0.6, 0.25, 0.05
# A child begins to give up a little before its supervisor gives it up.
_CHILD_SHARE = 0.9
# After its drain, an ingress closes its connections and ends.
_END_S = 2.0


class Occupant(Protocol):
    """Brings the models of a server: `ferry serve` is one."""

    def begin(self, settings: Settings) -> None:
        """Is called once Redis answers, while the others start."""

    def announce(self, supervisor: Supervisor) -> None:
        """Is called once all parts are ready, in the place of the server's own announcement."""


def run_server(
    settings: Settings,
    *,
    redis_memory: str = "0",
    redis_fsync: str = FSYNC_EVERY_SECOND,
    is_restoring: bool = True,
    needs_redis: bool = False,
    occupant: Occupant | None = None,
) -> None:
    """Serves until a signal asks to stop.

    Args:
        settings: without `redis_url`, an embedded Redis is started.
        redis_memory: memory limit of that Redis; 0: none.
        redis_fsync: when it has the disk confirm what it wrote to its file.
        is_restoring: registers what the newest snapshot holds; without, Redis forgets its models.
        needs_redis: does not wait for the Redis of `redis_url`.
        occupant: brings models, and announces them.

    Raises:
        ClickException: the server cannot start; all of its processes have ended.
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
            redis = prepared_redis(settings, redis_memory, redis_fsync)
            if redis.data is not None:
                cleanup.callback(redis.data.release)
            settings = replace(settings, redis_append_only=redis.data is not None)
        settings = _with_snapshots(
            settings, is_embedded=redis is not None, is_restoring=is_restoring
        )
        logs = None
        if settings.log_files:
            logs = cleanup.enter_context(LogFiles(settings.log_location, outlet(1).write_line))
        if redis is not None:
            # Next to the supervisor: before that hears signals, a SIGTERM would end this process
            # at once and leave the folder.
            cleanup.callback(redis.remove_folder)
            settings = replace(settings, redis_url=redis.url)
        keeps_models = is_restoring and settings.snapshot_file is None
        server = cleanup.enter_context(_prepared(settings, redis, logs, keeps_models=keeps_models))
        server = replace(server, occupant=occupant)
        report = print_report if logs is None else logs.say
        if redis is not None and (saved := _saved_models(settings)):
            models, place = ", ".join(saved), settings.snapshot_file
            report(f"Restoring {models} from {place} (--no-config-snapshots: without)")
        supervisor = Supervisor(
            server.parts(), stop_timeout_s=settings.drain_timeout_s, report=report
        )
        cleanup.enter_context(supervisor)
        _serve(supervisor, lambda: server.start(supervisor, report), report)


def run_ingresses(settings: Settings) -> None:
    """Runs `ingress_processes` ingresses, until a signal asks to stop.

    Raises:
        ClickException: they cannot start; all have ended.
    """
    check_free(settings.addresses().values())
    stop_s = settings.drain_delay_s + settings.drain_timeout_s + _END_S
    with (
        prepared_ingresses(settings, max(1, settings.ingress_processes), Launch.ALONE) as ingresses,
        Supervisor(ingresses.parts(1.0), stop_timeout_s=stop_s, report=print_report) as supervisor,
    ):
        _serve(supervisor, lambda: ingresses.start(supervisor), print_report)


def print_report(line: str) -> None:
    """Prints a line of the supervisor's own on standard error."""
    click.echo(line, err=True)


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
    supervisor: Supervisor, start: Callable[[], None], report: Callable[[str], None]
) -> None:
    """Calls `start`, keeps the parts alive until a signal asks to stop, and stops them.

    Raises:
        ClickException: the start failed; all parts have ended.
    """
    try:
        start()
        supervisor.run()
    except Interrupted:
        pass
    except StartFailed as error:
        supervisor.stop()
        is_unusable = error.exit_code == EXIT_UNUSABLE
        failure = UnusableSettings if is_unusable else click.ClickException
        raise failure(f"{error}; the lines above say why") from error
    except click.ClickException:
        supervisor.stop()
        raise
    except (TimeoutError, OSError) as error:
        supervisor.stop()
        raise click.ClickException(f"cannot start: {error}") from error
    report(f"Stopping on {supervisor.stop_reason}.")
    supervisor.stop()


@dataclass(frozen=True, slots=True)
class _Server:
    """Holds the parts of one server."""

    settings: Settings
    redis: EmbeddedRedis | None
    node: PartProcess
    ingresses: Ingresses
    # Whether models that an embedded Redis remembers stay: nothing else brings them back.
    keeps_models: bool
    occupant: Occupant | None = None

    def parts(self) -> list[Part]:
        """Returns what the supervisor starts, in this order."""
        node = Part("node", self.node.start, NODE_SHARE)
        parts = [node, *self.ingresses.parts(INGRESS_SHARE)]
        if self.redis is not None:
            parts.insert(0, Part(NAME, self.redis.launch, REDIS_SHARE))
        return parts

    def start(self, supervisor: Supervisor, report: Callable[[str], None]) -> None:
        """Starts the parts, waits until they are ready, and says so."""
        if self.redis is not None:
            start_redis(supervisor, self.redis, report, is_forgetting=not self.keeps_models)
        supervisor.start("node")
        if self.occupant is not None:
            self.occupant.begin(self.settings)
        named = self.settings.load_models
        if (console := err()).is_terminal and self.occupant is None:
            # No spinner: the parts write their log lines to the same terminal.
            console.print(escape(f"Starting and loading {named}" if named else "Starting"))
        self.ingresses.start(supervisor)
        # Registering a model takes a node, so the server has started only when there is one.
        supervisor.wait_until(self.node.ready.poll, self.node.ready.read_fd)
        if self.occupant is None:
            self._announce()
        else:
            self.occupant.announce(supervisor)

    def _announce(self) -> None:
        """Prints what was not loaded and where the server listens, and reports it ready."""
        for failure in self.ingresses.failures:
            words = ": ".join(str(value) for value in failure.values())
            err().print(f"[red]not loaded:[/] {escape(words)}", soft_wrap=True)
        settings = self.settings
        is_new = self.redis is not None and not (self.redis.remembers and self.keeps_models)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for role, address in settings.addresses().items():
            table.add_row(role.capitalize(), escape(address))
        if has_page(settings) and settings.inference_address.startswith("http"):
            table.add_row("Page", escape(f"{settings.inference_address}/"))
        if (keys_path := settings.keys_path()) is not None:
            table.add_row("Tokens", f"in {escape(str(keys_path))}")
        table.add_row("Models", escape(models_words(settings, is_new=is_new)))
        # The URL may hold a password, and this line may end in a log.
        url = RedisUrl.parse(settings.redis_url).without_secrets()
        table.add_row("Redis", escape(url if self.redis is None else words_of(self.redis)))
        out().print(table)
        # The line that scripts written for TorchServe wait for.
        click.echo("Model server started.")
        notify_ready()


@contextlib.contextmanager
def _prepared(
    settings: Settings, redis: EmbeddedRedis | None, logs: LogFiles | None, *, keeps_models: bool
) -> Iterator[_Server]:
    """Opens what the parts need to be started."""
    of_ingress, of_node = (
        replace(settings, drain_timeout_s=settings.drain_timeout_s * _CHILD_SHARE * share)
        for share in (INGRESS_SHARE, NODE_SHARE)
    )
    count = count_by_cores(settings)
    with (
        contextlib.closing(ReadyPipe()) as ready,
        prepared_ingresses(of_ingress, count, Launch.AWAITED, logs) as ingresses,
    ):
        node = PartProcess("workers", of_node, ready, Launch.AWAITED, logs)
        yield _Server(settings, redis, node, ingresses, keeps_models)


def models_words(settings: Settings, *, is_new: bool) -> str:
    """Says which models the server begins with; `is_new`: Redis brings none."""
    words = _saved_models(settings) if is_new else ["those that Redis remembers"]
    words += [settings.load_models] if settings.load_models else []
    return ", ".join(words) or f"none yet: {_first_step(settings)}"


def _first_step(settings: Settings) -> str:
    """Returns how the first model gets here."""
    store = settings.model_store
    if store is None:
        return "start with --model-store FOLDER, for the archives in it"
    archive = min((path.name for path in store.glob("*.mar")), default="ARCHIVE.mar")
    words = ["ferry", "models", "register", archive]
    address = settings.management_address
    if address.startswith("http") and address != Settings().management_address:
        words += ["--management-url", address]
    return f"`{shlex.join(words)}`"


def _saved_models(settings: Settings) -> list[str]:
    """Returns the names of the models that a snapshot brings back."""
    saved: list[SavedVersion] = []
    if settings.snapshot_file is not None:
        with contextlib.suppress(SettingsError):  # which the ingress says
            saved = read_snapshot(settings.snapshot_file)
    return list(dict.fromkeys(version.model_name for version in saved))
