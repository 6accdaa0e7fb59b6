"""Registers models with a running server, and has a new version follow the old one unnoticed."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batching.errors import NotFound, ServeError
from batching.models.registration import spec_from_registration
from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerState, WorkerStatus
from batching.settings.settings import Settings
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ferry.serving.python_file import TargetError
from ferry.serving.served_targets import DEFAULTS, RunFlags, ServedTarget
from workers.archives.model_archive import inspect_archive
from workers.archives.staging import work_dir_of

# Requests that were on their way to the old version when the new one took over have come by then.
ON_THEIR_WAY_S = 2.0
# What a served archive gets unless it says otherwise: parameters, and their words in archives.
_BATCHING = (
    ("batch_size", "batchSize"),
    ("max_batch_delay", "maxBatchDelay"),
    ("batch_policy", "batchPolicy"),
)


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A registered version, and what its workers say of it."""

    spec: ModelSpec
    workers: Sequence[WorkerStatus]

    @property
    def interface(self) -> Mapping[str, Any]:
        return self.workers[0].interface if self.workers else {}

    @property
    def error(self) -> str:
        """Returns why a worker could not load it; "" if none said so."""
        return next((one.traceback or one.error for one in self.workers if one.error), "")

    @property
    def is_loading(self) -> bool:
        ready = [one for one in self.workers if one.state is WorkerState.READY]
        return not self.error and len(ready) < max(1, self.spec.min_worker)


class LiveModels:
    """Holds the models of one `ferry serve`, by the names of their targets.

    They go into the registry from here: the first can so load while the ingress still starts.
    """

    def __init__(self, settings: Settings, flags: RunFlags) -> None:
        self._registry = Registry(connect(settings.redis_url))
        self._settings = settings
        self._flags = flags
        self._loads = 0
        self._known: set[str] = set()
        # Old versions, and when the new ones took over.
        self.retiring: list[tuple[ModelSpec, float]] = []
        # Versions that load, and since when.
        self.loading: dict[str, tuple[ModelSpec, float]] = {}
        self.serving: dict[str, ModelSpec] = {}

    def load(self, target: ServedTarget) -> None:
        """Registers the target as another version, in the place of one that still loads.

        Raises:
            TargetError: it cannot be registered; the text says why.
        """
        try:
            self.give_up(target.name)
            self.loading[target.name] = (self._register(target), time.monotonic())
        except (ServeError, OSError) as error:
            why = error.message if isinstance(error, ServeError) else error
            raise TargetError(f"{target.name}: {why}") from error

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
            is_first = target.name not in self._known
            version = target.version if is_first else f"{target.version}+{self._loads}"
            folder = self._settings.model_store / name
            target.write_folder(folder, version, self._flags.settings())
        self._known.add(target.name)
        place = self._settings.model_store / name
        archive = inspect_archive(place, name, work_dir_of(self._settings))
        batching = {rest: DEFAULTS[word] for rest, word in _BATCHING if word not in archive.config}
        parameters = {"initial_workers": 1, **batching}
        spec = spec_from_registration(parameters, archive, self._settings.model_defaults())
        spec = replace(spec, is_loaded_at_startup=True, **self._flags.spec_fields())
        self._registry.create(spec)
        return spec

    def look_at(self, spec: ModelSpec) -> LiveModel:
        return LiveModel(spec, self._registry.workers(spec.key))

    def take_over(self, name: str) -> None:
        """Has requests go to the version that has loaded; the one before is removed later."""
        spec, _ = self.loading[name]
        self._registry.set_default(*spec.key)
        del self.loading[name]
        if name in self.serving:
            self.retiring.append((self.serving[name], time.monotonic()))
        self.serving[name] = spec

    def remove_retired(self) -> None:
        """Removes the old versions that have no requests any more."""
        for retiring in list(self.retiring):
            spec, since_s = retiring
            queue = self._registry.queue(spec)
            is_idle = queue.waiting == queue.open_requests == queue.jobs == 0
            if is_idle and time.monotonic() - since_s > ON_THEIR_WAY_S:
                self.retiring.remove(retiring)
                self._remove(spec)

    def keep_only(self, names: Collection[str]) -> None:
        """Unregisters the models that their files do not serve any more."""
        for name in {*self.serving, *self.loading} - {*names}:
            self.give_up(name)
            if name in self.serving:
                self._remove(self.serving.pop(name))

    def give_up(self, name: str) -> None:
        """Unregisters the version that loads, if one does."""
        if name in self.loading:
            self._remove(self.loading.pop(name)[0])

    def _remove(self, spec: ModelSpec) -> None:
        with contextlib.suppress(NotFound):  # somebody else has unregistered it
            self._registry.remove(spec.key, only=spec)
