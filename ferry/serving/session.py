"""Brings a server the models of `ferry serve`, announces them, and loads saved changes.

A change is registered as a version beside the old one, which is removed when the new one has taken
over and no request is left. A save may be a rename, come in two writes, or come while the version
of the save before still loads: that version is given up. What cannot be read or loaded is shown,
and the old version serves on.
"""

import contextlib
import threading
import time
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from batching.errors import NotFound, ServeError
from batching.models.registration import spec_from_registration
from batching.models.spec import PARAMETERS, ModelSpec
from batching.models.statuses import WorkerState, WorkerStatus
from batching.process.part import notify_ready
from batching.settings.settings import Settings
from ferry.console import spinner
from ferry.process_tree.supervisor import Supervisor
from ferry.serving.announcement import announcement
from ferry.serving.served_targets import DEFAULTS, ServedTarget, TargetError, read_targets
from workers.archives.model_archive import inspect_archive
from workers.archives.staging import work_dir_of

if TYPE_CHECKING:
    from batching.store.registry.registry import Registry

# Editors write a file in several steps; a quiet moment ends a save.
_QUIET_MS = 60
_LONGEST_SAVE_MS = 400
# How often workers and queues are looked at, while a version loads or retires.
_LOOK_MS = 50
_IDLE_MS = 60_000
_RETRY_S = 0.5
# By then, requests that were on their way to the old version have reached it.
_ON_THEIR_WAY_S = 2.0
# What a served archive gets unless it says otherwise.
_BATCHING = ("batchSize", "maxBatchDelay", "batchPolicy")


@dataclass(slots=True)
class Session:
    """Serves the targets of the command's `arguments`.

    `fields` are what its flags change in each version; models that ask are told the `device`.
    """

    arguments: Sequence[str]
    targets: Sequence[ServedTarget]
    fields: Mapping[str, Any]
    device: str
    is_reloading: bool
    is_opening: bool
    _settings: Settings = field(init=False)
    _registry: "Registry" = field(init=False)
    # Model -> fingerprint of the files that were loaded last, whatever came of it.
    _fingerprints: dict[str, str] = field(default_factory=dict)
    _complaint: str = ""
    _loads: int = 0
    _known: set[str] = field(default_factory=set)
    # Model -> version; with the moment since when a version loads.
    _serving: dict[str, ModelSpec] = field(default_factory=dict)
    _loading: dict[str, tuple[ModelSpec, float]] = field(default_factory=dict)
    # Old versions, and the moments when newer ones took over.
    _retiring: list[tuple[ModelSpec, float]] = field(default_factory=list)

    def begin(self, settings: Settings) -> None:
        """Registers the models: workers load while the ingress starts."""
        # The client of Redis loads meanwhile, too.
        from batching.store.clients import connect  # noqa: PLC0415
        from batching.store.registry.registry import Registry  # noqa: PLC0415

        self._registry = Registry(connect(settings.redis_url))
        self._settings = settings
        self._load(self.targets)

    def announce(self, supervisor: Supervisor) -> None:
        """Waits for the models, and says how to use them.

        Raises:
            ClickException: one does not load, and no save will be waited for.
        """
        with spinner(f"Loading {', '.join(self._loading)}"):
            supervisor.wait_until(self._has_settled)
        self._take_over()
        notify_ready()
        if self.is_reloading:
            threading.Thread(target=self._follow, name="reload", daemon=True).start()
            click.echo("Saved changes are loaded by themselves.")
        click.echo("Ctrl-C ends.")
        if self.is_opening:
            # Some browsers end only when they are closed.
            threading.Thread(target=webbrowser.open, args=(self._base_url,), daemon=True).start()

    @property
    def _base_url(self) -> str:
        return self._settings.inference_address.replace("127.0.0.1", "localhost")

    def _has_settled(self) -> bool:
        specs = [spec for spec, _ in self._loading.values()]
        progress = [_progress(spec, self._registry.workers(spec.key)) for spec in specs]
        return any(error for error, _ in progress) or all(is_ready for _, is_ready in progress)

    def _load(self, targets: Sequence[ServedTarget]) -> None:
        """Begins to load the targets whose files have changed since they were loaded last."""
        loaded, new = self._fingerprints, {it.name: it.fingerprint() for it in targets}
        changed = [it for it in targets if loaded.get(it.name) != new[it.name]]
        self.targets, self._fingerprints, self._complaint = targets, new, ""
        for name in {*self._serving, *self._loading} - new.keys():
            self._cancel_load(name)
            if name in self._serving:
                self._remove(self._serving.pop(name))
        for target in changed:
            try:
                self._cancel_load(target.name)
                self._loading[target.name] = (self._register(target), time.monotonic())
            except (ServeError, OSError) as error:
                why = error.message if isinstance(error, ServeError) else error
                self._complain(f"{target.name}: {why}")

    def _register(self, target: ServedTarget) -> ModelSpec:
        assert self._settings.model_store is not None
        self._loads += 1
        name = f"{target.name}-{self._loads}"
        if target.is_archive:
            assert target.path is not None
            name += "".join(target.path.suffixes)
            (self._settings.model_store / name).symlink_to(target.path)
        else:
            # A version that failed may still be on its way out: each has a name of its own.
            is_again = target.name in self._known
            version = f"{target.version}+{self._loads}" if is_again else target.version
            more = {"device": self.device} if self.device == "mps" else {}
            target.write_folder(self._settings.model_store / name, version, more)
        self._known.add(target.name)
        path = self._settings.model_store / name
        archive = inspect_archive(path, name, work_dir_of(self._settings))
        added = {it for it in _BATCHING if it not in archive.config}
        batching = {it.rest: DEFAULTS[it.word] for it in PARAMETERS if it.word in added}
        parameters = {"initial_workers": 1, **batching}
        spec = spec_from_registration(parameters, archive, self._settings.model_defaults())
        spec = replace(spec, is_loaded_at_startup=True, **self.fields)
        self._registry.create(spec)
        return spec

    def _take_over(self) -> None:
        for name, (spec, since_s) in list(self._loading.items()):
            workers = self._registry.workers(spec.key)
            error, is_ready = _progress(spec, workers)
            if error:
                self._cancel_load(name)
                self._complain(f"{spec.model_name} did not load.\n{error}")
            elif is_ready:
                self._registry.set_default(*spec.key)
                del self._loading[name]
                now_s = time.monotonic()
                if name in self._serving:
                    self._retiring.append((self._serving[name], now_s))
                    version = f"{spec.model_name} {spec.model_version}"
                    click.echo(f"{version} serves after {now_s - since_s:.1f} s")
                else:
                    click.echo(announcement(spec, workers, self._base_url))
                self._serving[name] = spec

    def _remove_retired(self) -> None:
        for retiring in list(self._retiring):
            spec, since_s = retiring
            queue = self._registry.queue(spec)
            is_idle = queue.waiting == queue.open_requests == queue.jobs == 0
            if is_idle and time.monotonic() - since_s > _ON_THEIR_WAY_S:
                self._retiring.remove(retiring)
                self._remove(spec)

    def _cancel_load(self, name: str) -> None:
        if name in self._loading:
            self._remove(self._loading.pop(name)[0])

    def _remove(self, spec: ModelSpec) -> None:
        with contextlib.suppress(NotFound):  # somebody else has unregistered it
            self._registry.remove(spec.key, only=spec)

    def _follow(self) -> None:
        from watchfiles._rust_notify import RustNotify  # noqa: PLC0415 - only here

        folders: set[str] = set()
        is_due = False
        while True:
            try:
                # An editor may put another file in a file's place, so folders are watched.
                sources = [path for target in self.targets for path in target.sources.values()]
                if (now := {str(path.parent) for path in sources}) != folders:
                    watcher = RustNotify(list(now), False, False, 0, False, False)
                    folders, is_due = now, True
                is_busy = is_due or self._loading or self._retiring
                timeout_ms = _LOOK_MS if is_busy else _IDLE_MS
                changes = watcher.watch(_LONGEST_SAVE_MS, _QUIET_MS, timeout_ms, None)
                is_due = is_due or isinstance(changes, set)
                if is_due:
                    self._load(read_targets(self.arguments))
                    is_due = False
                self._take_over()
                self._remove_retired()
            except TargetError as error:
                is_due = False
                self._complain(error.message)
            except (ServeError, OSError) as error:  # Redis or a folder is away for a moment
                self._complain(f"cannot reload: {error}")
                time.sleep(_RETRY_S)

    def _complain(self, text: str) -> None:
        if not self.is_reloading:
            raise click.ClickException(text)
        if text != self._complaint:
            self._complaint = text
            specs = self._serving.values()
            names = ", ".join(f"{spec.model_name} {spec.model_version}" for spec in specs)
            still = f"Still served: {names}. " if names else ""
            click.echo(f"{text}\n{still}Waiting for the next save.", err=True)


def _progress(spec: ModelSpec, workers: Sequence[WorkerStatus]) -> tuple[str, bool]:
    """Returns why a worker could not load the model, or "", and whether all are ready."""
    error = next((worker.traceback or worker.error for worker in workers if worker.error), "")
    ready = [worker for worker in workers if worker.state is WorkerState.READY]
    return error, len(ready) >= max(1, spec.min_worker)
