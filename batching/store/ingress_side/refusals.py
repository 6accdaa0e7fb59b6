"""Why a submit was refused, in words that say what to do."""

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import VersionKey
from batching.store.ingress_side.ingress_queue import SubmitCode
from batching.store.unavailable import memory_full


def refusal(code: SubmitCode, key: VersionKey, retry_after_s: float) -> errors.ServeError:
    """Returns the error that a client gets for this code.

    `retry_after_s` is when a full queue has emptied.

    Each reason has a text of its own; TorchServe calls all of them "no worker".
    """
    name = key.model_name
    if code is SubmitCode.FULL:
        return errors.QueueFull(
            f'The queue of model "{name}" is full. Try again later, add workers, or raise '
            "job_queue_size.",
            retry_after_s=retry_after_s,
        )
    if code is SubmitCode.NO_TICKET:
        return errors.NoTicket(
            f'No worker of model "{name}" is free, and with useJobTicket no request waits for one. '
            "Try again later, or add workers.",
            retry_after_s=retry_after_s,
        )
    if code is SubmitCode.NO_WORKER or code is SubmitCode.NO_BEAT:
        return errors.NoWorker(
            f'Model "{name}" has no worker to serve inference request. Please use scale workers '
            "API to add workers.",
            retry_after_s=1.0,
        )
    if code is SubmitCode.NO_MEMORY:
        return memory_full()
    return no_version(*key)
