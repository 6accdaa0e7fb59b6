"""Keeps a node's disk: unpacks archives into folders, and removes folders that no model needs."""

import asyncio
import contextlib
import hashlib
import logging
import weakref
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

from batching.errors import ServeError
from batching.models.spec import ModelSpec
from batching.process.daemon_thread import in_daemon_thread
from batching.settings.settings import Settings
from workers.archives import fetch
from workers.archives import model_archive as archive
from workers.archives.installer import Installer
from workers.archives.staging import mark_used, remove_abandoned, remove_unused, work_dir_of

log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    model_dir: Path
    python: Path


class ModelFiles:
    """Prepares the files of models in one node's model store and work folder."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._model_store = settings.model_store
        self._work_dir = work_dir_of(settings)
        # Weak: a lock lives for as long as a task holds it or waits for it.
        self._unpacking: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._installer = Installer(
            self._work_dir,
            is_allowed=settings.install_py_dep_per_model,
            forbidden_variables=settings.blacklist_env_vars,
        )

    async def prepare(self, spec: ModelSpec, *, is_exact: bool = False) -> Prepared:
        """Unpacks the archive and installs its requirements, unless this host has them already.

        An archive is unpacked once for all workers of this node that need it, which may take
        minutes; other archives do not wait for it, unless they are downloads to the same file. With
        `is_exact`, the folder has no files that workers left, unless a worker still runs there.

        Raises:
            ServeError: the archive cannot be fetched, has changed since it was registered, or has
                requirements that cannot be installed.
        """
        model_dir = await in_daemon_thread(partial(self._find_unpacked, spec, is_exact=is_exact))
        if model_dir is None:
            name = fetch.name_of_download(spec.model_url) or spec.archive_sha256
            async with self._unpacking.setdefault(name, asyncio.Lock()):
                model_dir = await in_daemon_thread(partial(self._unpack, spec, is_exact=is_exact))
        return Prepared(model_dir, await self._installer.python_for(spec, model_dir))

    def sweep(self, specs: Collection[ModelSpec]) -> None:
        """Marks the files of these models as used, and deletes files that no model needs.

        These are left by killed processes, or were not marked for `unused_files_kept`. Nodes may
        share a work folder: each marks what it needs, far more often than that.
        """
        kept_s = self._settings.unused_files_kept_s
        for spec in specs:
            with contextlib.suppress(ServeError):  # no SHA-256
                if (unpacked := self._find_unpacked(spec)) is not None:
                    self._installer.mark_used(spec, unpacked)
        remove_unused(self._work_dir, self._work_dir, older_than_s=kept_s)
        self._installer.remove_unused(older_than_s=kept_s)
        for folder in (self._work_dir, self._model_store):
            if folder is not None and folder.is_dir():
                remove_abandoned(folder)

    def forget(self, urls: Collection[str], *, kept: Collection[str] = ()) -> None:
        """Removes what was downloaded from these URLs, unless one in `kept` means the same file."""
        for url in urls:
            if any(fetch.may_share_a_file(url, other) for other in kept):
                continue
            try:
                if self._model_store is not None and fetch.remove_download(url, self._model_store):
                    log.info("removed download url=%s", url)
            except OSError as error:
                log.warning("download not removed url=%s: %s", url, error.strerror)

    def _unpack(self, spec: ModelSpec, *, is_exact: bool) -> Path:
        if (unpacked := self._find_unpacked(spec, is_exact=is_exact)) is not None:
            return unpacked
        path = fetch.locate_archive(spec.model_url, self._settings, is_registered=True)
        return archive.unpack_archive(
            path, spec.archive_sha256, self._work_dir, self._owner(spec), is_exact=is_exact
        )

    def _owner(self, spec: ModelSpec) -> str:
        """Returns a hash of the version, and of the folder in the store that it is served from.

        It names the unpacked files, so that the handlers of two versions do not share a folder.
        """
        folder = ""
        if not fetch.name_of_download(spec.model_url):
            with contextlib.suppress(ServeError):  # what was unpacked serves without the archive
                path = fetch.locate_archive(spec.model_url, self._settings, is_registered=True)
                folder = str(path.resolve()) if path.is_dir() else ""
        return hashlib.sha256("\0".join((*spec.key, folder)).encode()).hexdigest()[:16]

    def _find_unpacked(self, spec: ModelSpec, *, is_exact: bool = False) -> Path | None:
        unpacked = archive.find_unpacked(
            spec.archive_sha256, self._work_dir, self._owner(spec), is_exact=is_exact
        )
        return unpacked if unpacked is not None and mark_used(unpacked.parent) else None
