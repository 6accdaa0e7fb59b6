"""Finds batches that have not ended, and runs a few of them at a time, oldest first."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ferry_bulk.batch_run import BatchRun
from ferry_bulk.folder import FINAL, BulkFolder, Record, Refused

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
_LOOK_S = 0.5
_AGAIN_S = 10.0  # until a batch that stopped, on a full disk for example, begins again
_SWEEP_S = 600.0


class Feeder:
    """Runs batches, each in a thread."""

    def __init__(self, folder: BulkFolder, make_run: Callable[[Record], BatchRun]) -> None:
        self._folder = folder
        self._make_run = make_run
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "batch")
        self._seen: set[str] = set()  # batches that wait for a thread, run, or have ended

    def run(self) -> None:
        sweep_at_s = 0.0
        while True:
            try:
                self._look()
                if time.monotonic() > sweep_at_s:
                    self._folder.sweep()
                    sweep_at_s = time.monotonic() + _SWEEP_S
            except OSError:
                log.exception("the folder cannot be used")
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        new = []
        for batch_id in self._folder.batch_ids() - self._seen:
            try:
                batch = self._folder.batch(batch_id)
            except Refused:  # its record cannot be read, as the log says
                self._seen.add(batch_id)
                continue
            if batch["status"] in FINAL:
                self._seen.add(batch_id)
            else:
                new.append((batch["created_at"], batch_id))
        for _, batch_id in sorted(new):
            self._seen.add(batch_id)
            self._threads.submit(self._run_batch, batch_id)

    def _run_batch(self, batch_id: str) -> None:
        log.info("batch runs: %s", batch_id)
        try:
            self._make_run(self._folder.batch(batch_id)).run()
        except Exception:  # whatever it is, the batch goes on from its files
            log.exception("batch stopped, and begins again: %s", batch_id)
            time.sleep(_AGAIN_S)
            self._seen.discard(batch_id)
