"""What Redis holds of a job, and what it says about it.

The hash under `VersionKeys.job_prefix` + id:

    created_ms, queued_ms   Redis' time of the submit, and of the last one that began anew
    ttl_ms                  from then to its deadline
    priority                high, of one that waits among the requests
    protocol                open_inference, of one whose client looks for such errors
    keep_ms                 for so long it is kept after it has finished
    started_ms, attempts,   of the attempt that runs, or ran last; started_ms and worker not while
    worker                  it waits
    progress                what the handler told last in this attempt: the share, a space, a text
    piece_bytes             of a streamed answer: so many bytes of it have been told
    status                  succeeded, failed, cancelled or expired; not before it has finished
    finished_ms, result     with the status; the result as the value of a reply key (replies.py),
                            empty when it has been let go
    input                   of one that did not succeed: the wire of its record
    webhook, webhook_...    whom to tell of it (webhook_records.py)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import msgspec

from batching.models.spec import VersionKey
from batching.store.jobs.webhook_records import Webhook


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


_SHARE = re.compile(rb"[01]\.[0-9]{4}")

# What is read of a job: all but its input.
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
    "worker",
    "progress",
    "piece_bytes",
    "webhook",
    "webhook_tries",
    "webhook_status",
    "webhook_error",
)
OPEN_INFERENCE = b"open_inference"
MOST_TEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds how far the handler said it is: a share from 0 to 1, and a few words."""

    share: float
    text: str

    def encode(self) -> bytes:
        """Returns the value of the field."""
        text = self.text[:MOST_TEXT_CHARS].encode(errors="replace")
        return f"{self.share:.4f} ".encode() + text

    @classmethod
    def of(cls, value: bytes | None) -> Self | None:
        """Reads the field; None if there is none, or garbage."""
        share, _, text = (value or b"").partition(b" ")
        if not _SHARE.fullmatch(share):
            return None
        return cls(float(share), text[: 4 * MOST_TEXT_CHARS].decode(errors="replace"))


class Job(msgspec.Struct, frozen=True):
    """One job at one moment; times are Redis' clock in milliseconds, None while not known.

    `result` is the value of a reply key, empty where there is none; `position` is how many jobs of
    its queue wait before it, None if it does not wait there or they are very many. An urgent one
    waits among the requests. `piece_bytes`: so many of a streamed answer have been told.
    `is_durable`: whether its Redis writes an append-only file.
    `is_open_inference`: whether an error is to have the shape of the Open Inference Protocol.
    """

    job_id: str
    key: VersionKey
    status: JobStatus
    created_ms: int
    expires_ms: int
    started_ms: int | None = None
    finished_ms: int | None = None
    attempts: int = 0
    result: bytes = b""
    is_urgent: bool = False
    worker_id: str = ""
    progress: Progress | None = None
    piece_bytes: int = 0
    position: int | None = None
    is_durable: bool = True
    is_open_inference: bool = False
    webhook: Webhook | None = None

    @classmethod
    def of(cls, job_id: str, key: VersionKey, fields: Mapping[str, bytes], now_ms: int) -> Self:
        """Makes a job of those of FIELDS that its hash has.

        Raises:
            ValueError: they are not a job's.
        """
        try:
            created_ms, queued_ms = int(fields["created_ms"]), int(fields["queued_ms"])
            ttl_ms, keep_ms = int(fields["ttl_ms"]), int(fields["keep_ms"])
        except KeyError as error:
            raise ValueError(f"no job: {job_id}") from error
        deadline_ms = queued_ms + ttl_ms
        started, finished = fields.get("started_ms"), fields.get("finished_ms")
        if (status := fields.get("status")) is not None:
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
            created_ms=created_ms,
            expires_ms=ended_ms + keep_ms,
            started_ms=None if started is None else int(started),
            finished_ms=ended_ms if state.is_final else None,
            attempts=int(fields.get("attempts", 0)),
            result=fields.get("result", b""),
            is_urgent=fields.get("priority") == b"high",
            is_open_inference=fields.get("protocol") == OPEN_INFERENCE,
            webhook=Webhook.of(fields),
            worker_id=fields.get("worker", b"").decode(errors="replace"),
            progress=Progress.of(fields.get("progress")),
            piece_bytes=int(fields.get("piece_bytes", 0)),
        )
