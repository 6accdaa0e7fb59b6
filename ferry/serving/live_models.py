"""Registers models with a running server, and has a new version follow the old one unnoticed."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batching.errors import NotFound, ServeError
from batching.models.registration import spec_from_registration
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import WorkerState, WorkerStatus
from batching.settings.settings import Settings
from batching.store.registry.registry import Registry
from ferry.serving.python_source import TargetError
from ferry.serving.served_targets import DEFAULTS, RunFlags, ServedTarget
from workers.archives.model_archive import inspect_archive
from workers.archives.model_files import work_dir_of

# Requests that were on their way to the old version when the new one took over have come by then.
ON_THEIR_WAY_S = 2.0


class LoadFailed(Exception):
    """A version did not load; the text is its error."""


class Superseded(Exception):
    """There is a newer version to load already."""


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A version that serves, and what its workers say of it."""

    spec: ModelSpec
    workers: Sequence[WorkerStatus]

    @property
    def interface(self) -> Mapping[str, Any]:
        return self.workers[0].interface if self.workers else {}


class LiveModels:
    """The models of one `ferry serve`.

    They go into the registry from here: the first can so load while the ingress still starts.
    """

    def __init__(self, registry: Registry, settings: Settings, flags: RunFlags) -> None:
        assert settings.model_store is not None
        self._registry = registry
        self._settings = settings
        self._store = settings.model_store
        self._flags = flags
        self._loads = 0
        # Old versions, and when the new ones took over.
        self._retiring: list[tuple[ModelSpec, float]] = []
        # By the names of their targets: an archive's model may be called otherwise.
        self._names: dict[VersionKey, str] = {}
        self.serving: dict[str, LiveModel] = {}

    def register(self, target: ServedTarget) -> ModelSpec:
        """Registers the target under a version of its own; nodes begin to load it.

        Raises:
            TargetError: it cannot be registered; the text says why.
        """
        self._loads += 1
        name = f"{target.name}-{self._loads}"
        # A version that failed may still be on its way out: each has a name of its own.
        is_first = target.name not in self._names.values()
        version = target.version if is_first else f"{target.version}+{self._loads}"
        place = self._store / name
        try:
            if target.is_archive:
                assert target.path is not None
                name += "".join(target.path.suffixes)
                place = self._store / name
                place.symlink_to(target.path)
            else:
                target.write_folder(place, version, self._flags.settings())
            archive = inspect_archive(place, name, work_dir_of(self._settings))
            parameters = {"initial_workers": 1, **_unless_said(archive.config)}
            spec = spec_from_registration(parameters, archive, self._settings.model_defaults())
            spec = replace(spec, is_loaded_at_startup=True, **self._flags.spec_fields())
            self._names[spec.key] = target.name
            self._registry.create(spec)
        except ServeError as error:
            raise TargetError(f"{target.name}: {error.message}") from error
        except OSError as error:
            raise TargetError(f"{target.name}: {error}") from error
        return spec

    def wait(self, spec: ModelSpec, pause: Callable[[], bool]) -> LiveModel:
        """Waits until the version serves; one that does not is unregistered again.

        Args:
            spec: as registered.
            pause: waits a moment, and returns whether to give the version up.

        Raises:
            LoadFailed: a worker could not load it.
            Superseded: it was given up.
        """
        try:
            while True:
                workers = self._registry.workers(spec.key)
                if error := next((one.traceback or one.error for one in workers if one.error), ""):
                    raise LoadFailed(f"{spec.model_name} did not load.\n{error}")
                ready = [one for one in workers if one.state is WorkerState.READY]
                if ready and len(ready) >= spec.min_worker:
                    return LiveModel(spec, ready)
                if pause():
                    raise Superseded
        except (LoadFailed, Superseded):
            self.give_up(spec)
            raise

    def take_over(self, live: LiveModel) -> None:
        """Has requests go to this version; the one before is removed once it has none left."""
        name = self._names[live.spec.key]
        self._registry.set_default(*live.spec.key)
        if (old := self.serving.get(name)) is not None:
            self._retiring.append((old.spec, time.monotonic()))
        self.serving[name] = live

    def remove_retired(self) -> None:
        """Removes the old versions that have no requests any more."""
        for retiring in list(self._retiring):
            spec, since = retiring
            if time.monotonic() - since > ON_THEIR_WAY_S and self._is_idle(spec):
                self._retiring.remove(retiring)
                self.give_up(spec)

    def drop(self, name: str) -> None:
        """Unregisters a model that the file does not serve any more."""
        self.give_up(self.serving.pop(name).spec)

    def _is_idle(self, spec: ModelSpec) -> bool:
        queue = self._registry.queue(spec)
        return queue.waiting == 0 and queue.open_requests == 0 and queue.jobs == 0

    def give_up(self, spec: ModelSpec) -> None:
        """Unregisters a version, if nobody else has."""
        with contextlib.suppress(NotFound):  # somebody else has unregistered it
            self._registry.remove(spec.key, only=spec)


def _unless_said(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the batching of a served archive that says nothing of it."""
    names = {
        "batch_size": "batchSize",
        "max_batch_delay": "maxBatchDelay",
        "batch_policy": "batchPolicy",
    }
    return {name: DEFAULTS[word] for name, word in names.items() if word not in config}
