"""What Redis holds of a job, and what it says about it.

The hash under `VersionKeys.job_prefix` + id:

    created_ms, queued_ms   Redis' time of the submit, and of the last one that began anew
    ttl_ms                  from then to its deadline
    priority                high, of one that waits among the requests
    protocol                open_inference, of one whose client looks for such errors
    keep_ms                 for so long it is kept after it has finished
    started_ms, attempts    of the attempt that runs, or ran last; started_ms not while it waits
    status                  succeeded, failed, cancelled or expired; not before it has finished
    finished_ms, result     with the status; the result as the value of a reply key (replies.py),
                            empty when it has been let go
    input                   of one that did not succeed: the wire of its record
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from batching.models.spec import VersionKey


class JobStatus(StrEnum):
    """Where a job is; the last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        return self not in {JobStatus.QUEUED, JobStatus.RUNNING}


# In the order in which `Job.of` takes their values.
FIELDS = (
    "created_ms",
    "queued_ms",
    "ttl_ms",
    "keep_ms",
    "started_ms",
    "attempts",
    "status",
    "finished_ms",
    "result",
    "priority",
    "protocol",
)
OPEN_INFERENCE = b"open_inference"


@dataclass(frozen=True, slots=True)
class Job:
    """One job at one moment; times are Redis' clock in milliseconds, None while not known.

    `result` is the value of a reply key, empty where there is none; `position` is how many jobs of
    its queue wait before it, None if it does not wait there or they are very many. An urgent one
    waits among the requests. `is_durable`: whether its Redis writes an append-only file.
    `is_open_inference`: whether an error is to have the shape of the Open Inference Protocol.
    """

    job_id: str
    key: VersionKey
    status: JobStatus
    created_ms: int
    expires_ms: int
    started_ms: int | None
    finished_ms: int | None
    attempts: int
    result: bytes
    is_urgent: bool = False
    position: int | None = None
    is_durable: bool = True
    is_open_inference: bool = False

    @classmethod
    def of(cls, job_id: str, key: VersionKey, values: Sequence[bytes | None], now_ms: int) -> Self:
        """Makes a job of the values of FIELDS.

        Raises:
            ValueError: they are not a job's.
        """
        created, queued, ttl, keep, started, attempts, status, finished, result, *rest = values
        priority, protocol = rest
        if created is None or queued is None or ttl is None or keep is None:
            raise ValueError(f"no job: {job_id}")
        deadline_ms = int(queued) + int(ttl)
        if status is not None:
            state = JobStatus(status.decode())
        elif started is not None:
            state = JobStatus.RUNNING
        else:
            # Nobody may have come to find that its time is over.
            state = JobStatus.QUEUED if now_ms < deadline_ms else JobStatus.EXPIRED
        ended_ms = deadline_ms if finished is None else int(finished)
        return cls(
            job_id=job_id,
            key=key,
            status=state,
            created_ms=int(created),
            expires_ms=ended_ms + int(keep),
            started_ms=None if started is None else int(started),
            finished_ms=ended_ms if state.is_final else None,
            attempts=int(attempts or 0),
            result=result or b"",
            is_urgent=priority is not None,
            is_open_inference=protocol == OPEN_INFERENCE,
        )
