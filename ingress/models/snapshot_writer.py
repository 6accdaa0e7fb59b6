"""Saves the registered models in a file at start, after each change, and at the end.

This is for a Redis that ends with the server. Any other Redis keeps the registry itself.
"""

import contextlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batching.errors import StoreUnavailable
from batching.process.retries import Reminder
from batching.settings.settings import Settings
from batching.settings.snapshots import saved_models, write_snapshot
from batching.store.registry.registry import Registry

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_CLOSE_S = 0.5
# Only a bound: changes, `close` and the end of the connection wake the thread.
_LISTEN_S = 60.0


class SnapshotWriter:
    """Watches the registry in a thread of its own, from `start` to `close`.

    A snapshot that could not be written is tried again after `save_again_s`.
    """

    def __init__(
        self, registry: Registry, settings: Settings, folder: Path, *, save_again_s: float = 30.0
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._folder = folder
        self._save_again_s = save_again_s
        self._saved: Mapping[str, Any] | None = None
        self._has_failed = False
        self._reminder = Reminder()
        self._is_over = threading.Event()
        # A daemon: a Redis that does not answer must not keep a stopped server alive.
        self._thread = threading.Thread(target=self._watch, name="snapshots", daemon=True)

    def start(self, *, is_whole: bool = True) -> None:
        """Saves the registry now and after each change. Blocks.

        If the last snapshot was not completely restored (`is_whole`), it stays until the registry
        changes: a missing archive may be back at the next start.
        """
        if not is_whole:
            with contextlib.suppress(StoreUnavailable):
                self._saved = saved_models(self._registry.snapshot())
        self._save()
        self._thread.start()

    def close(self) -> None:
        """Saves the registry for the last time, if `start` was called. Blocks."""
        self._is_over.set()
        if self._thread.is_alive():
            with contextlib.suppress(StoreUnavailable):
                self._registry.announce("")
            self._thread.join(_CLOSE_S)
            self._save()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._registry.changes() as wait:
                    while not self._is_over.is_set():
                        self._save()
                        # Workers' states come over the same channel and change nothing here.
                        wait(self._save_again_s if self._has_failed else _LISTEN_S)
            except StoreUnavailable:
                self._is_over.wait(_RETRY_S)

    def _save(self) -> None:
        try:
            models = self._registry.snapshot()
            state = saved_models(models)
            # The nodes will fill an emptied Redis again: no operator has emptied the registry.
            if state == self._saved or (not state and self._registry.is_lost()):
                return
            path = write_snapshot(self._folder, self._settings, models)
            self._saved, self._has_failed = state, False
            self._reminder = Reminder()
            log.info("saved snapshot=%s", path)
        except (StoreUnavailable, OSError) as error:
            self._has_failed = True
            reason = str(error.strerror if isinstance(error, OSError) else error)
            # Workers report often, and each report leads to a try.
            if self._reminder.is_due(reason):
                template = "snapshot not saved folder=%s: %s (snapshot_dir chooses another folder)"
                log.error(template, self._folder, reason)
