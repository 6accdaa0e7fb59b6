"""Defines a job's fields in Redis, reads them, and makes the document that clients see.

The hash under `VersionKeys.job_prefix` + id:

    created_ms, queued_ms   Redis' time of the submit, and of the submit or last retry
    ttl_ms                  from queued_ms to its deadline
    priority                high if it waits among the requests
    protocol                open_inference if its client reads the errors of that protocol
    keep_ms                 how long it is kept after it has finished
    started_ms, attempts,   of the attempt that runs, or ran last; started_ms and worker are missing
    worker                  while it waits
    progress                the handler's latest in this attempt: the share, a space, a text
    status                  succeeded, failed, cancelled or expired; only once it has finished
    finished_ms, result     with the status; the result as the value of a reply key (records.py),
                            empty when it has been deleted
    input                   the wire of its record, if it did not succeed
    webhook                 the receiver, as JSON
    webhook_start           1 if the receiver wants the event `started`, too
    webhook_event           the latest event for the receiver: started, or the final status
    webhook_tries           of this event
    webhook_status          pending, delivered, failed or gone
    webhook_error           of the last try; empty without a try, and after a success
"""

import datetime
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import msgspec

from batching.models.spec import VersionKey
from batching.protocol import ProtocolError, Reply
from batching.store.records import LargeReply, decode_reply, error_reply, queue_error

log = logging.getLogger(__name__)


class JobStatus(StrEnum):
    """Names the states of a job; the last four are final."""

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

# The fields that are read of a job: all but its input.
FIELDS = (
    *("created_ms", "queued_ms", "ttl_ms", "keep_ms", "started_ms", "attempts", "status"),
    *("finished_ms", "result", "priority", "protocol", "worker", "progress"),
    *("webhook", "webhook_tries", "webhook_status", "webhook_error"),
)
OPEN_INFERENCE = b"open_inference"
MOST_TEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds the handler's progress: a share from 0 to 1, and a text."""

    share: float
    text: str

    def encode(self) -> bytes:
        text = self.text[:MOST_TEXT_CHARS].encode(errors="replace")
        return f"{self.share:.4f} ".encode() + text

    @classmethod
    def of(cls, value: bytes | None) -> Self | None:
        """Reads the field; returns None if it is missing or garbage."""
        share, _, text = (value or b"").partition(b" ")
        if not _SHARE.fullmatch(share):
            return None
        return cls(float(share), text[: 4 * MOST_TEXT_CHARS].decode(errors="replace"))


class Receiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names a webhook's receiver and events. `base_url`: the server's, as its client saw it."""

    url: str
    base_url: str
    is_start_told: bool = False
    is_result_told: bool = False


class Webhook(msgspec.Struct, frozen=True):
    """Holds the state of a job's webhook."""

    receiver: Receiver
    status: str = "pending"
    tries: int = 0
    last_error: str = ""


class Job(msgspec.Struct, frozen=True):
    """Holds one job at one moment; times are Redis' clock in milliseconds, None while unknown.

    `result` is the value of a reply key, empty without one; `position` is how many jobs of its
    queue wait before it, None if it does not wait there or more than FARTHEST do. An urgent job
    waits among the requests. `is_durable`: its Redis writes an append-only file.
    `is_open_inference`: its errors have the shape of the Open Inference Protocol.
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
    position: int | None = None
    is_durable: bool = True
    is_open_inference: bool = False
    webhook: Webhook | None = None

    @classmethod
    def of(cls, job_id: str, key: VersionKey, fields: Mapping[str, bytes], now_ms: int) -> Self:
        """Makes a job of the FIELDS that its hash has.

        Raises:
            ValueError: these are not a job's.
        """
        try:
            numbers = (fields[f"{name}_ms"] for name in ("created", "queued", "ttl", "keep"))
            created_ms, queued_ms, ttl_ms, keep_ms = map(int, numbers)
        except KeyError as error:
            raise ValueError(f"no job: {job_id}") from error
        deadline_ms = queued_ms + ttl_ms
        started, finished = fields.get("started_ms"), fields.get("finished_ms")
        if (status := fields.get("status")) is not None:
            state = JobStatus(status.decode())
        elif started is not None:
            state = JobStatus.RUNNING
        else:
            # No worker may have come yet to expire it.
            state = JobStatus.QUEUED if now_ms < deadline_ms else JobStatus.EXPIRED
        ended_ms = deadline_ms if finished is None else int(finished)
        webhook = None
        if (receiver := fields.get("webhook")) is not None:
            webhook = Webhook(
                receiver=msgspec.json.decode(receiver, type=Receiver),
                status=fields.get("webhook_status", b"pending").decode(),
                tries=int(fields.get("webhook_tries", 0)),
                last_error=fields.get("webhook_error", b"").decode(errors="replace"),
            )
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
            webhook=webhook,
            worker_id=fields.get("worker", b"").decode(errors="replace"),
            progress=Progress.of(fields.get("progress")),
        )


def read_version(value: bytes | str) -> VersionKey | None:
    """Returns the model and version in this JSON; None if it is garbage."""
    try:
        model_name, model_version = json.loads(value)
    except (ValueError, TypeError, RecursionError) as error:
        log.error("unreadable version=%r: %r", value[:200], error)
        return None
    return VersionKey(str(model_name), str(model_version))


def small_reply(job: Job) -> Reply | None:
    """Returns the result, if there is one and it is not large; of an expired job, the error."""
    if job.status is JobStatus.EXPIRED:
        return error_reply(queue_error("deadline_exceeded"))
    try:
        return decode_reply(job.job_id, job.result) if job.result else None
    except (LargeReply, ProtocolError):
        return None


def job_document(job: Job, base_url: str) -> dict[str, Any]:
    """Returns the document that clients see; leaves out what is not known yet.

    `base_url` is the server's as this client sees it, without a slash at the end.
    """
    url = f"{base_url}/jobs/{job.job_id}"
    reply, progress, webhook = small_reply(job), job.progress, job.webhook
    timing = reply.timing if reply is not None else None
    batch = {
        "worker": job.worker_id or None,
        "size": timing and timing.batch_size,
        "closed_by": timing and timing.closed_by.value,
        "queue_ms": timing and timing.queue_us // 1000,
        "run_ms": timing and timing.handler_us // 1000,
    }
    error = None
    if job.status in {JobStatus.FAILED, JobStatus.EXPIRED} and reply is not None:
        message = bytes(reply.body).decode("utf-8", "replace")
        error = {
            "code": reply.status,
            "type": reply.error_type or "PredictionException",
            "message": message if reply.error_type else "The handler answered with this status.",
        }
    document = {
        "id": job.job_id,
        "model": job.key.model_name,
        "version": job.key.model_version,
        "status": job.status.value,
        "created_at": _rfc3339(job.created_ms),
        "started_at": job.started_ms and _rfc3339(job.started_ms),
        "finished_at": job.finished_ms and _rfc3339(job.finished_ms),
        "expires_at": _rfc3339(job.expires_ms),
        "attempts": job.attempts,
        "position": job.position if job.status is JobStatus.QUEUED else None,
        "durable": None if job.is_durable else False,
        "batch": _known(batch) or None,
        "error": error,
        "progress": progress and _known({"share": progress.share, "text": progress.text or None}),
        "result_url": f"{url}/result",
        "cancel_url": url,
        "webhook": webhook
        and _known(
            {
                "url": webhook.receiver.url,
                "status": webhook.status,
                "attempts": webhook.tries,
                "last_error": webhook.last_error or None,
            }
        ),
    }
    return _known(document)


def _known(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


def _rfc3339(time_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
