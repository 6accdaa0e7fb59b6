"""Declares the errors of requests about jobs."""

from batching import errors


class JobNotFound(errors.NotFound):
    """Refuses an id that no job has, or no longer."""

    type = "JobNotFoundException"
    reason = "job_not_found"


class ResultGone(errors.ServeError):
    """Says that the job was cancelled, or its result let go."""

    status = 410
    type = "ResultGoneException"
    reason = "result_gone"


class KeyReused(errors.ServeError):
    """Refuses an Idempotency-Key that belongs to another request."""

    status = 422
    type = "IdempotencyKeyReusedException"
    reason = "idempotency_key_reused"


class NotRetryable(errors.Conflict):
    """Refuses to try a job again that has not failed, or whose input is not kept."""

    type = "JobNotRetryableException"
    reason = "job_not_retryable"


def no_job(job_id: str) -> JobNotFound:
    """Returns the error for an id that no job has, whatever a client takes for one."""
    return JobNotFound(f"Job not found: {job_id[:64]}")
