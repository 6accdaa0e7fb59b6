"""Why a submit was refused, in words that say what to do."""

import contextlib
from collections.abc import Iterator

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import VersionKey
from batching.store.connections.lost_connections import REFUSALS
from batching.store.ingress_side.ingress_queue import SubmitCode
from batching.store.redis_errors import UNWELCOME, RedisError


def refusal(code: SubmitCode, key: VersionKey, retry_after_s: float) -> errors.ServeError:
    """The error that a client gets for this code; `retry_after_s` is when a full queue has emptied.

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


def memory_full() -> errors.ServeError:
    """Redis is at its maxmemory."""
    return errors.QueueMemoryFull("The queue's memory is full. Try again later.", retry_after_s=1.0)


def store_unavailable(cause: BaseException | None = None) -> errors.ServeError:
    """Redis does not answer, or refuses: it has no room for what is to be written, say."""
    if isinstance(cause, OutOfMemoryError):
        return errors.StoreFull(
            "The request store is at its maxmemory. Raise it, or try again later.",
            retry_after_s=1.0,
        )
    if isinstance(cause, (*REFUSALS, *UNWELCOME)):
        return errors.StoreUnavailable(
            "The request store refuses what it is asked; the server's log says why. Try again "
            "later.",
            retry_after_s=1.0,
        )
    return errors.StoreUnavailable(
        "The request store does not answer. Try again shortly.", retry_after_s=1.0
    )


@contextlib.contextmanager
def telling_unavailable() -> Iterator[None]:
    """What Redis refuses, or does not answer, is told as StoreUnavailable."""
    try:
        yield
    except RedisError as error:  # not AWAY: what is done meanwhile may fail by an OSError
        raise store_unavailable(error) from error


def queue_lost() -> errors.ServeError:
    """Redis was emptied, and too little time is left to send the request again for its client."""
    return errors.QueueLost("The queue was lost. Send the request again.", retry_after_s=1.0)
