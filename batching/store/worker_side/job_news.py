"""What a worker has to tell about a job that runs."""

from collections import deque
from dataclasses import dataclass, field

from batching.protocol import Owned
from batching.store.jobs.job_records import Progress

# As many pieces of a job's answer are kept while it runs: a MiB.
MOST_PIECES = 64


@dataclass(slots=True)
class JobNews:
    """Holds what is new: its progress, None if that is as it was, and pieces of its answer.

    Each piece is the place of its first byte in the answer, and at most `CHUNK_LIMIT_BYTES`.
    """

    job: Owned
    progress: Progress | None = None
    pieces: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=MOST_PIECES))

    def and_then(self, newer: "JobNews") -> "JobNews":
        """Returns these news and newer ones of the same job, in one."""
        self.pieces.extend(newer.pieces)
        return JobNews(self.job, newer.progress or self.progress, self.pieces)
