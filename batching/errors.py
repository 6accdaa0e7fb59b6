"""Defines the errors that become answers to clients, if more than one place raises them.

Each class carries its HTTP status, the `type` that TorchServe puts in the JSON body and `reason`, a
stable word for machines, so the ingress needs only one error handler.
"""

from typing import ClassVar


class ServeError(Exception):
    """Becomes an answer: `message` goes to the client word for word.

    `operators_text` follows it where only operators of this machine can connect.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerException"
    reason: ClassVar[str] = "internal_error"

    def __init_subclass__(cls, **answer: int | str) -> None:
        """Takes `status`, `type` and `reason` where they are not the parent's."""
        for name, value in answer.items():
            setattr(cls, name, value)

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operators_text = ""
        self.retry_after_s = retry_after_s


class BadRequest(ServeError, status=400, type="BadRequestException", reason="bad_request"):
    """Says that the request cannot be understood; sending it again will not help."""


class InvalidModel(BadRequest, type="InvalidModelException", reason="invalid_model"):
    """Says that the archive's content is not a servable model."""


class DownloadFailed(BadRequest, type="DownloadArchiveException", reason="download_failed"):
    """Says that a remote archive could not be fetched."""


class DependenciesFailed(BadRequest, type="ModelException", reason="dependencies_failed"):
    """Says that the requirements.txt of an archive could not be installed."""


class VersionInUse(
    ServeError, status=403, type="InvalidModelVersionException", reason="default_version"
):
    """Says that the default version cannot be removed while others remain."""


class NotFound(ServeError, status=404, type="ResourceNotFoundException", reason="not_found"):
    """Says that there is no such path."""


class ModelNotFound(NotFound, type="ModelNotFoundException", reason="model_not_found"):
    """Says that there is no model of that name, or no archive at that place."""


class VersionNotFound(NotFound, type="ModelVersionNotFoundException", reason="version_not_found"):
    """Says that the model is known, but not this version."""


class MethodNotAllowed(
    ServeError, status=405, type="MethodNotAllowedException", reason="method_not_allowed"
):
    """Says that the path is known, but not with this method."""


class RequestTimeout(ServeError, status=408, type="RequestTimeoutException", reason="timeout"):
    """Says that an operator's command took too long."""


class Conflict(ServeError, status=409, type="ConflictStatusException", reason="conflict"):
    """Says that the name is taken."""


class PayloadTooLarge(
    ServeError, status=413, type="PayloadTooLargeException", reason="payload_too_large"
):
    """Says that the body is over `max_request_size`."""


class InternalError(ServeError):
    """Says that the server is at fault."""


class RecordUnreadable(InternalError):
    """Says that Redis has a record under a model's name that this program did not write."""


class WorkerDied(InternalError, reason="worker_crashed"):
    """Says that the request's worker died, on every attempt."""


class Unavailable(ServeError, status=503, type="ServiceUnavailableException", reason="unavailable"):
    """Says that the request is refused for now; it may be served later."""


class NoWorker(Unavailable, reason="no_worker"):
    """Says that no live worker serves this model version."""


class QueueFull(Unavailable, reason="queue_full"):
    """Says that as many requests wait as `job_queue_size` allows."""


class QueueMemoryFull(Unavailable, reason="queue_memory"):
    """Says that Redis is at its `maxmemory`."""


class QueueLost(Unavailable, reason="queue_lost"):
    """Says that Redis lost the queue, and too little of the deadline is left to queue again."""


class StoreUnavailable(Unavailable, reason="redis_unavailable"):
    """Says that Redis does not answer, or refuses a command."""


class StoreFull(StoreUnavailable, reason=QueueMemoryFull.reason):
    """Says that Redis answers, but accepts no more data: it is at its `maxmemory`."""


class NoThread(Unavailable, reason="no_thread"):
    """Says that the system lets this process start no thread."""


class Draining(Unavailable, reason="draining"):
    """Says that this ingress is shutting down; another one takes the request."""


class PredictionFailed(ServeError, status=503, reason="prediction_failed"):
    """Says that the handler raised, or returned something that is not an answer."""


class DeadlineExceeded(
    ServeError, status=504, type="RequestTimeoutException", reason="deadline_exceeded"
):
    """Says that the request's deadline passed before the answer came."""


class OutOfResources(ServeError, status=507, reason="out_of_resources"):
    """Says that the handler ran out of memory."""
