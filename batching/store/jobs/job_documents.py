"""Shows a job as JSON."""

import datetime
from functools import lru_cache
from typing import Any

from batching.protocol import ProtocolError, Reply
from batching.store.jobs.job_records import Job, JobStatus, Progress
from batching.store.jobs.webhook_records import Webhook
from batching.store.records import LargeReply, decode_reply, error_reply, queue_error


def job_document(job: Job, base_url: str) -> dict[str, Any]:
    """Returns what clients see of a job; what is not known yet is left out.

    Args:
        job: at this moment.
        base_url: of the server as this client sees it, without a slash at the end.
    """
    url = f"{base_url}/jobs/{job.job_id}"
    reply = small_reply(job)
    progress = job.progress
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
        "batch": _batch(job, reply) or None,
        "error": _error(job, reply),
        "progress": progress and progress_document(progress),
        "result_url": f"{url}/result",
        "cancel_url": url,
        "webhook": job.webhook and _webhook(job.webhook),
    }
    return {name: value for name, value in document.items() if value is not None}


def progress_document(progress: Progress) -> dict[str, Any]:
    """Returns what clients see of a job's progress."""
    return {"share": progress.share} | ({"text": progress.text} if progress.text else {})


def small_reply(job: Job) -> Reply | None:
    """Returns the result, if it is there and not large; an expired job's is its error."""
    if job.status is JobStatus.EXPIRED:
        return error_reply(queue_error("deadline_exceeded"))
    if not job.result:
        return None
    try:
        return decode_reply(job.job_id, job.result)
    except (LargeReply, ProtocolError):
        return None


def _batch(job: Job, reply: Reply | None) -> dict[str, Any]:
    timing = reply.timing if reply is not None else None
    batch: dict[str, Any] = {"worker": job.worker_id} if job.worker_id else {}
    if timing is not None:
        batch |= {
            "size": timing.batch_size,
            "closed_by": timing.closed_by.value,
            "queue_ms": timing.queue_us // 1000,
            "run_ms": timing.handler_us // 1000,
        }
    return batch


def _webhook(webhook: Webhook) -> dict[str, Any]:
    found = {
        "url": webhook.receiver.url,
        "status": webhook.status,
        "attempts": webhook.tries,
        "last_error": webhook.last_error,
    }
    return {name: value for name, value in found.items() if value != ""}


def _error(job: Job, reply: Reply | None) -> dict[str, Any] | None:
    if job.status not in {JobStatus.FAILED, JobStatus.EXPIRED} or reply is None:
        return None
    message = bytes(reply.body).decode("utf-8", "replace")
    return {
        "code": reply.status,
        "type": reply.error_type or "PredictionException",
        "message": message if reply.error_type else "The handler answered with this status.",
    }


def _rfc3339(time_ms: int) -> str:
    return f"{_second(time_ms // 1000)}.{time_ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(time_s: int) -> str:
    # The jobs of a second have it in common.
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
