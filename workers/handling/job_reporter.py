"""Tells how far the jobs of a batch are, while it runs.

The handler leaves word, and a thread writes it: no handler waits for Redis, or fails for it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence

from batching.protocol import Claimed, Owned
from batching.store.jobs.job_records import Progress
from batching.store.redis_errors import AWAY, OutageLog

log = logging.getLogger(__name__)

# From one write to the next.
PAUSE_S = 0.5


class JobReporter:
    """Writes the latest progress of each job of one batch at a time, at once and then now and then.

    Without `write`, in a process that is no worker, it does nothing.
    """

    def __init__(
        self,
        write: Callable[[Sequence[tuple[Owned, bytes]]], object] | None,
        outage: OutageLog | None = None,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._write = write
        self._outage = outage or OutageLog(log)
        self._pause_s = pause_s
        self._items: Sequence[Claimed] = ()
        self._unwritten: dict[str, tuple[Owned, bytes]] = {}  # by id
        self._changing = threading.Lock()
        self._has_news = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def begin(self, items: Sequence[Claimed]) -> None:
        """Takes progress of these requests from now on."""
        self._items = items

    def forget(self) -> None:
        """Lets go what has not been written: the answers come now."""
        self._items = ()
        if self._unwritten:
            with self._changing:
                self._unwritten.clear()

    def note_progress(self, share: float, text: str, request_ids: Collection[str]) -> None:
        """Notes how far these requests are, if they are jobs of the batch."""
        jobs = [
            item.owned
            for item in self._items
            if item.owned.is_of_job and item.request_id in request_ids
        ]
        # The thread is not in a process that the handler has forked, but maybe its lock is.
        if not jobs or self._write is None or os.getpid() != self._pid:
            return
        value = Progress(share, text).encode()
        with self._changing:
            self._unwritten |= {job.request_id: (job, value) for job in jobs}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job progress", daemon=True)
                self._thread.start()
        self._has_news.set()

    def _run(self) -> None:
        while True:
            self._has_news.wait()
            self._has_news.clear()
            self._write_all()
            time.sleep(self._pause_s)

    def _write_all(self) -> None:
        """Writes what is new, or keeps it for the next time."""
        with self._changing:
            progress, self._unwritten = self._unwritten, {}
        if not progress:
            return
        assert self._write is not None
        try:
            self._write([*progress.values()])
        except AWAY as error:
            self._outage.note("progress", error)
            with self._changing:
                running = {item.request_id for item in self._items}
                kept = {name: one for name, one in progress.items() if name in running}
                self._unwritten = kept | self._unwritten
            self._has_news.set()
        else:
            self._outage.over("progress")
