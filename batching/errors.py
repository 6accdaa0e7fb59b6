"""Defines the errors that become answers to clients, if more than one place raises them.

Each class carries its HTTP status and the `type` that TorchServe puts in the JSON body, so the
ingress needs only one error handler. `reason` is a stable word for machines.
"""

from typing import ClassVar


class ServeError(Exception):
    """Becomes an answer: `message` goes to the client word for word.

    `operators_text` follows it where only operators of this machine can connect.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerException"
    reason: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operators_text = ""
        self.retry_after_s = retry_after_s


class BadRequest(ServeError):
    """Says that the request cannot be understood; sending it again will not help."""

    status = 400
    type = "BadRequestException"
    reason = "bad_request"


class InvalidModel(BadRequest):
    """Says that the archive's content is not a servable model."""

    type = "InvalidModelException"
    reason = "invalid_model"


class DownloadFailed(BadRequest):
    """A remote archive could not be fetched."""

    type = "DownloadArchiveException"
    reason = "download_failed"


class DependenciesFailed(BadRequest):
    """Says that the requirements.txt of an archive could not be installed."""

    type = "ModelException"
    reason = "dependencies_failed"


class VersionInUse(ServeError):
    """Says that the default version cannot be removed while others remain."""

    status = 403
    type = "InvalidModelVersionException"
    reason = "default_version"


class NotFound(ServeError):
    """There is no such path."""

    status = 404
    type = "ResourceNotFoundException"
    reason = "not_found"


class ModelNotFound(NotFound):
    """There is no model of that name, or no archive at that place."""

    type = "ModelNotFoundException"
    reason = "model_not_found"


class VersionNotFound(NotFound):
    """Says that the model is known, but not this version."""

    type = "ModelVersionNotFoundException"
    reason = "version_not_found"


class MethodNotAllowed(ServeError):
    """Says that the path is known, but not with this method."""

    status = 405
    type = "MethodNotAllowedException"
    reason = "method_not_allowed"


class RequestTimeout(ServeError):
    """An operator's command took too long."""

    status = 408
    type = "RequestTimeoutException"
    reason = "timeout"


class Conflict(ServeError):
    """Says that the name is taken."""

    status = 409
    type = "ConflictStatusException"
    reason = "conflict"


class PayloadTooLarge(ServeError):
    """Says that the body is over `max_request_size`."""

    status = 413
    type = "PayloadTooLargeException"
    reason = "payload_too_large"


class InternalError(ServeError):
    """Says that the server is at fault."""


class RecordUnreadable(InternalError):
    """Redis has a record under a model's name that this program did not write."""


class WorkerDied(InternalError):
    """Says that the request's worker died, on every attempt."""

    reason = "worker_crashed"


class Unavailable(ServeError):
    """Says that the request is refused for now; it may be served later."""

    status = 503
    type = "ServiceUnavailableException"
    reason = "unavailable"


class NoWorker(Unavailable):
    """No live worker serves this model version."""

    reason = "no_worker"


class QueueFull(Unavailable):
    """As many requests wait as `job_queue_size` allows."""

    reason = "queue_full"


class QueueMemoryFull(Unavailable):
    """Redis is at its `maxmemory`."""

    reason = "queue_memory"


class QueueLost(Unavailable):
    """Redis lost the queue, and too little of the deadline is left to queue again."""

    reason = "queue_lost"


class StoreUnavailable(Unavailable):
    """Redis does not answer, or refuses a command."""

    reason = "redis_unavailable"


class StoreFull(StoreUnavailable):
    """Redis answers, but accepts no more data: it is at its `maxmemory`."""

    reason = QueueMemoryFull.reason


class NoThread(Unavailable):
    """Says that the system lets this process start no thread."""

    reason = "no_thread"


class Draining(Unavailable):
    """This ingress is shutting down; another one takes the request."""

    reason = "draining"


class PredictionFailed(ServeError):
    """Says that the handler raised, or returned something that is not an answer."""

    status = 503
    reason = "prediction_failed"


class DeadlineExceeded(ServeError):
    """Says that the request's deadline passed before the answer came."""

    status = 504
    type = "RequestTimeoutException"
    reason = "deadline_exceeded"


class OutOfResources(ServeError):
    """Says that the handler ran out of memory."""

    status = 507
    reason = "out_of_resources"
