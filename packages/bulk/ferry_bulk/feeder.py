"""Finds batches that have not ended, and runs a few of them at a time, oldest first."""

import logging
import threading
import time
from collections.abc import Callable

from ferry_bulk.batch_run import BatchRun
from ferry_bulk.folder import FINAL, BulkFolder, Record, Refused

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
_LOOK_S = 0.5
_AGAIN_S = 10.0  # until a batch that stopped, as the disk was full, begins again
_SWEEP_S = 600.0
_STOP_S = 5.0


class Feeder:
    """Runs batches, each in a thread, until it is stopped."""

    def __init__(self, folder: BulkFolder, make_run: Callable[[Record], BatchRun]) -> None:
        self._folder = folder
        self._make_run = make_run
        self._again_at_s: dict[str, float] = {}  # those that stopped
        self._running: dict[str, tuple[threading.Thread, BatchRun]] = {}
        self._ended: set[str] = set()  # there may be thousands, which are not read again
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends all batches where they are; their jobs go on, and are found again."""
        self._stopped.set()
        self._thread.join()
        for _, run in self._running.values():
            run.halted.set()
        end_s = time.monotonic() + _STOP_S
        for thread, _ in self._running.values():
            thread.join(max(0.0, end_s - time.monotonic()))

    def _run(self) -> None:
        sweep_at_s = 0.0
        while not self._stopped.wait(_LOOK_S):
            try:
                self._start_some()
                if time.monotonic() > sweep_at_s:
                    self._folder.sweep()
                    sweep_at_s = time.monotonic() + _SWEEP_S
            except OSError:
                log.exception("the folder cannot be used")

    def _start_some(self) -> None:
        for batch_id, (thread, _) in list(self._running.items()):
            if not thread.is_alive():
                del self._running[batch_id]
        for batch in self._waiting()[: MOST_AT_ONCE - len(self._running)]:
            log.info("batch runs: %s", batch["id"])
            run = self._make_run(batch)
            thread = threading.Thread(target=self._run_batch, args=(run,), daemon=True)
            self._running[batch["id"]] = thread, run
            thread.start()

    def _run_batch(self, run: BatchRun) -> None:
        try:
            run.run()
        except Exception:  # whatever it is, the batch is not lost: it begins again from its files
            log.exception("batch stopped, and begins again: %s", run.batch["id"])
            self._again_at_s[run.batch["id"]] = time.monotonic() + _AGAIN_S

    def _waiting(self) -> list[Record]:
        """Returns the batches that have not ended and do not run, oldest first."""
        waiting = []
        for batch_id in self._folder.batch_ids() - self._ended - self._running.keys():
            try:
                batch = self._folder.batch(batch_id)
            except Refused:  # its record cannot be read, which is in the log
                self._ended.add(batch_id)
                continue
            if batch["status"] in FINAL:
                self._ended.add(batch_id)
            elif self._again_at_s.get(batch_id, 0.0) <= time.monotonic():
                waiting.append(batch)
        return sorted(waiting, key=lambda batch: (batch["created_at"], batch["id"]))
