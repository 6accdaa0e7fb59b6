"""The errors for clients when Redis is away, full, or refuses."""

import contextlib
from collections.abc import Iterator

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.store.connections.lost_connections import REFUSALS
from batching.store.redis_errors import UNWELCOME, RedisError


def memory_full() -> errors.ServeError:
    return errors.QueueMemoryFull("The queue's memory is full. Try again later.", retry_after_s=1.0)


def store_unavailable(cause: BaseException | None = None) -> errors.ServeError:
    """Returns the error for a call that Redis did not answer, or refused."""
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
    """Turns Redis' errors into StoreUnavailable."""
    try:
        yield
    except RedisError as error:  # not AWAY: the block may raise an OSError of its own
        raise store_unavailable(error) from error


def queue_lost() -> errors.ServeError:
    """Returns the error for a lost request that has too little time left to be sent again."""
    return errors.QueueLost("The queue was lost. Send the request again.", retry_after_s=1.0)
