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
from batching.settings.snapshots import CHANGE, SHUTDOWN, STARTUP, saved_models, write_snapshot
from batching.store.registry.registry import Registry

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_CLOSE_S = 0.5
# Only a bound: the thread is woken by changes, by `close`, and by its connection's end.
_LISTEN_S = 60.0


class SnapshotWriter:
    """Watches the registry in a thread of its own, from `start` to `close`.

    What a full disk did not take is saved again after `save_again_s`.
    """

    def __init__(
        self, registry: Registry, settings: Settings, folder: Path, *, save_again_s: float = 30.0
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._folder = folder
        self._save_again_s = save_again_s
        self._saved: Mapping[str, Any] | None = None
        self._is_whole = True
        self._has_failed = False
        self._reminder = Reminder()
        self._is_over = threading.Event()
        # A daemon: a Redis that does not answer must not keep a stopped server alive.
        self._thread = threading.Thread(target=self._watch, name="snapshots", daemon=True)
        self._is_writing = threading.Lock()

    def start(self, *, is_whole: bool = True) -> None:
        """Saves the registry now and after each change. Blocks.

        If the last snapshot was not restored as a whole (`is_whole`), it stays the newest one until
        the registry changes: an archive that was missing may be back at the next start.
        """
        self._is_whole = is_whole
        self._save(STARTUP)
        self._thread.start()

    def close(self) -> None:
        """Saves the registry for the last time, if it was started. Blocks."""
        self._is_over.set()
        if self._saved is not None:
            self._save(SHUTDOWN)
        if self._thread.is_alive():
            with contextlib.suppress(StoreUnavailable):
                self._registry.announce("")
            self._thread.join(_CLOSE_S)

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._registry.changes() as wait:
                    self._save(CHANGE)
                    while not self._is_over.is_set():
                        # Workers' states come over the same channel and change nothing here.
                        wait(self._save_again_s if self._has_failed else _LISTEN_S)
                        self._save(CHANGE)
            except StoreUnavailable:
                self._is_over.wait(_RETRY_S)

    def _save(self, kind: str) -> None:
        with self._is_writing:
            if kind == CHANGE and self._is_over.is_set():
                return
            try:
                models = self._registry.snapshot()
                state = saved_models(models)
                if state == self._saved and (kind == CHANGE or not self._is_whole):
                    return
                if kind == STARTUP and not self._is_whole:
                    self._saved = state
                    return
                # The nodes will fill an emptied Redis again. No operator has emptied it.
                if kind != STARTUP and not state and self._registry.is_lost():
                    return
                properties = self._settings.to_properties()
                path = write_snapshot(self._folder, kind, properties, models)
                self._saved, self._is_whole, self._has_failed = state, True, False
                self._reminder = Reminder()
                log.info("saved snapshot=%s", path)
            except (StoreUnavailable, OSError) as error:
                self._has_failed = True
                words = error.strerror if isinstance(error, OSError) else str(error)
                # Workers report often, and each report is one more try.
                if self._reminder.is_due(str(words)):
                    text = "snapshot not saved folder=%s: %s (snapshot_dir chooses another folder)"
                    log.error(text, self._folder, words)
