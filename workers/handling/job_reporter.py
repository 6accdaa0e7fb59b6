"""Tells about the jobs of a batch while it runs: their progress, and pieces of their answers.

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
from batching.store.worker_side.job_news import JobNews

log = logging.getLogger(__name__)

# From one write to the next.
PAUSE_S = 0.5

Write = Callable[[Sequence[JobNews]], object]


class JobReporter:
    """Writes the latest news of each job of one batch at a time, at once and then now and then.

    Without `write`, in a process that is no worker, it does nothing.
    """

    def __init__(
        self, write: Write | None, outage: OutageLog | None = None, *, pause_s: float = PAUSE_S
    ) -> None:
        self._write = write
        self._outage = outage or OutageLog(log)
        self._pause_s = pause_s
        self._items: Sequence[Claimed] = ()
        self._news: dict[str, JobNews] = {}  # by id
        self._changing = threading.Lock()
        self._has_news = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def begin(self, items: Sequence[Claimed]) -> None:
        """Takes news of these requests from now on."""
        self._items = items

    def forget(self) -> None:
        """Lets go what has not been written: the answers come now."""
        self._items = ()
        if self._news:
            with self._changing:
                self._news.clear()

    def note_progress(self, share: float, text: str, request_ids: Collection[str]) -> None:
        """Notes how far these requests are, if they are jobs of the batch."""
        items = self._items
        jobs = [one.owned for one in items if one.owned.is_of_job and one.request_id in request_ids]
        if jobs:
            progress = Progress(share, text)
            self._note([JobNews(job, progress) for job in jobs])

    def note_pieces(self, job: Owned, place: int, pieces: Sequence[bytes]) -> None:
        """Notes what comes next in the answer of this job of the batch.

        Args:
            job: as claimed.
            place: of the first piece in the answer, in bytes.
            pieces: in order.
        """
        news = JobNews(job)
        for piece in pieces:
            news.pieces.append((place, piece))
            place += len(piece)
        self._note([news])

    def _note(self, news: Sequence[JobNews]) -> None:
        # The thread is not in a process that the handler has forked, but maybe its lock is.
        if self._write is None or os.getpid() != self._pid:
            return
        with self._changing:
            for one in news:
                before = self._news.get(one.job.request_id)
                self._news[one.job.request_id] = before.and_then(one) if before else one
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job news", daemon=True)
                self._thread.start()
        self._has_news.set()

    def _run(self) -> None:
        while True:
            self._has_news.wait()
            self._has_news.clear()
            self._tell()
            time.sleep(self._pause_s)

    def _tell(self) -> None:
        """Writes what is new, or keeps it for the next time."""
        with self._changing:
            news, self._news = self._news, {}
        if not news:
            return
        assert self._write is not None
        try:
            self._write([*news.values()])
        except AWAY as error:
            self._outage.note("progress", error)
            with self._changing:
                running = {item.request_id for item in self._items}
                for name, newer in self._news.items():
                    news[name] = news[name].and_then(newer) if name in news else newer
                self._news = {name: one for name, one in news.items() if name in running}
            self._has_news.set()
        else:
            self._outage.over("progress")
