"""A node's disk: archives become folders, and what nobody needs any more goes."""

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batching.daemon_thread import in_daemon_thread
from batching.errors import ServeError
from batching.model_spec import ModelSpec
from batching.settings import Settings
from workers import archive, fetch, quarantine
from workers.download import remove_download
from workers.installer import Installer
from workers.quarantine import mark_used, remove_unused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that a worker process can be started for."""

    model_dir: Path
    python: Path


class ModelFiles:
    """The model store and the work folder of one node."""

    def __init__(self, settings: Settings) -> None:
        self._model_store = settings.model_store
        self._allowed_urls = settings.allowed_urls
        self._work_dir = settings.work_dir or _default_work_dir()
        self._unused_kept_s = settings.unused_files_kept_s
        # Weak: a lock is there for as long as somebody holds it or waits for it.
        self._unpacking: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._installer = Installer(
            self._work_dir,
            is_allowed=settings.install_py_dep_per_model,
            forbidden_variables=settings.blacklist_env_vars,
        )

    async def prepare(self, spec: ModelSpec) -> Prepared:
        """The folder of the unpacked archive, and the interpreter that has its requirements.

        Both are made here when this host has not seen them yet.

        Raises:
            ServeError: the archive cannot be had, is not the one that was registered, or has
                requirements that cannot be installed.
        """
        model_dir = await in_daemon_thread(partial(self._find_unpacked, spec))
        if model_dir is None:
            model_dir = await self._unpack_alone(spec)
        return Prepared(model_dir, await self._installer.python_for(spec, model_dir))

    def sweep(self, specs: Iterable[ModelSpec]) -> None:
        """What these models need is kept; what nobody needs has gone, if it is old.

        That is what killed processes left half done in either folder, and what was made for models
        that no node has had for `unused_files_kept`. Nodes may share a work folder: each marks what
        it needs, far more often than that.
        """
        for spec in specs:
            with contextlib.suppress(ServeError):  # what it says of itself is nonsense
                if (unpacked := self._find_unpacked(spec)) is not None:
                    self._installer.mark_used(spec, unpacked)
        remove_unused(self._work_dir, self._work_dir, older_than_s=self._unused_kept_s)
        self._installer.remove_unused(older_than_s=self._unused_kept_s)
        for folder in (self._work_dir, self._model_store):
            if folder is not None and folder.is_dir():
                quarantine.sweep(folder)

    def forget(self, urls: Iterable[str]) -> None:
        """Archives that were downloaded from these URLs have left the store; all others stay."""
        for url in urls:
            try:
                if self._model_store is not None and remove_download(url, self._model_store):
                    log.info("removed download url=%s", url)
            except OSError as error:
                log.warning("download not removed url=%s: %s", url, error.strerror)

    async def _unpack_alone(self, spec: ModelSpec) -> Path:
        """The model's folder, which is made once for all workers of this node that need it.

        Other archives do not wait: one may take many minutes. Downloads do that have the same file
        name in the store, or one would replace the file that another is unpacking.
        """
        name = fetch.name_of_download(spec.model_url) or spec.archive_sha256
        lock = self._unpacking.setdefault(name, asyncio.Lock())
        async with lock:
            return await in_daemon_thread(partial(self._unpack, spec))

    def _unpack(self, spec: ModelSpec) -> Path:
        if (unpacked := self._find_unpacked(spec)) is not None:
            return unpacked
        path = fetch.locate_archive(
            spec.model_url,
            self._model_store,
            allowed_urls=self._allowed_urls,
            is_registered=True,
        )
        return archive.unpack_archive(path, spec.archive_sha256, self._work_dir)

    def _find_unpacked(self, spec: ModelSpec) -> Path | None:
        """The model's folder, if it is there, and stays there for a while."""
        unpacked = archive.find_unpacked(spec.archive_sha256, self._work_dir)
        return unpacked if unpacked is not None and mark_used(unpacked) else None


def _default_work_dir() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache) / "torchferry" / "models"
