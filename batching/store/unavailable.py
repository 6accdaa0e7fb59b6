"""What clients are told when Redis is away, full, or refuses."""

import contextlib
from collections.abc import Iterator

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.store.connections.lost_connections import REFUSALS
from batching.store.redis_errors import UNWELCOME, RedisError


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
    """Yields what Redis refuses, or does not answer, is told as StoreUnavailable."""
    try:
        yield
    except RedisError as error:  # not AWAY: what is done meanwhile may fail by an OSError
        raise store_unavailable(error) from error


def queue_lost() -> errors.ServeError:
    """Redis was emptied, and too little time is left to send the request again for its client."""
    return errors.QueueLost("The queue was lost. Send the request again.", retry_after_s=1.0)
