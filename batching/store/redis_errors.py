"""Tells what Redis raises: by its meaning, for clients, and in the log."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator

import redis
from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.process.retries import REMIND_S
from batching.settings.redis_url import RedisUrl


class NotHere(redis.ConnectionError):
    """Says that the server cannot serve these keys now; another one may."""


RedisError = redis.RedisError
# Redis did not answer, or refused; it may have acted or not. redis-py wraps most errors of sockets,
# but not all, and a time-out of asyncio is an OSError.
AWAY = (RedisError, OSError)
# Redis is not heard, and may be again.
UNHEARD = (redis.TimeoutError, redis.ConnectionError)
# Redis is heard, and will not: do this, or anything for this user.
REFUSED = redis.ResponseError
FORBIDDEN = redis.exceptions.NoPermissionError
UNWELCOME = (redis.AuthenticationError, redis.exceptions.AuthorizationError, FORBIDDEN)
# Redis is there, and says why it does not do as it is asked.
REFUSALS = (REFUSED, NotHere)

# A failure this soon after an outage is not news: Redis may come and go for a while.
AGAIN_S = 5.0


def memory_full() -> errors.ServeError:
    return errors.QueueMemoryFull("The queue's memory is full. Try again later.", retry_after_s=1.0)


def queue_lost() -> errors.ServeError:
    """Returns the error for a lost request that has too little time left to be sent again."""
    return errors.QueueLost("The queue was lost. Send the request again.", retry_after_s=1.0)


def store_unavailable(cause: BaseException | None = None) -> errors.ServeError:
    """Returns the error for a call that Redis did not answer, or refused."""
    if isinstance(cause, OutOfMemoryError):
        text = "The request store is at its maxmemory. Raise it, or try again later."
        return errors.StoreFull(text, retry_after_s=1.0)
    text = "The request store does not answer. Try again shortly."
    if isinstance(cause, (*REFUSALS, *UNWELCOME)):
        text = (
            "The request store refuses what it is asked; the server's log says why. Try again "
            "later."
        )
    return errors.StoreUnavailable(text, retry_after_s=1.0)


@contextlib.contextmanager
def telling_unavailable() -> Iterator[None]:
    try:
        yield
    except RedisError as error:  # not AWAY: the block may raise an OSError of its own
        raise store_unavailable(error) from error


class OutageLog:
    """Logs that Redis is away: once for all callers, now and then, and once when it is back.

    All callers in a process try again many times a second, and would all log the same.
    """

    def __init__(
        self,
        log: logging.Logger,
        redis_url: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._where = RedisUrl.parse(redis_url).without_secrets() if redis_url else "unknown"
        self._clock = clock
        # Verb -> until when a success that is for all does not end its failure.
        self._failing: dict[str, float] = {}
        self._since_s = 0.0
        self._failed_at_s = -math.inf
        self._silent_until_s: dict[str, float] = {}
        self._is_said = False

    def note(self, verb: str, error: BaseException) -> None:
        """Notes that this call has failed; logs it unless the log has said so lately."""
        now_s = self._clock()
        if not self._failing:
            self._since_s = now_s
        # A refusal comes wrapped: in our own error for clients, in redis-py's for connections.
        while isinstance(error.__cause__, Exception):
            error = error.__cause__
        event = "Redis refuses" if isinstance(error, REFUSALS) else "Redis does not answer"
        if isinstance(error, UNWELCOME):
            event = "Redis refuses this user or password"
        if isinstance(error, FORBIDDEN):
            # A call that this user may not make fails while all others succeed.
            self._failing[verb] = now_s + AGAIN_S
        else:
            self._failing[verb] = self._failed_at_s = now_s
        # A server that comes back with another password is news.
        if now_s < self._silent_until_s.get(event, now_s):
            return
        self._silent_until_s[event], self._is_said = now_s + REMIND_S, True
        self._log.warning(
            "%s redis=%s verb=%s away_s=%.0f: %s",
            *(event, self._where, verb, now_s - self._since_s),
            str(error) or type(error).__name__,
        )

    def was_within(self, seconds: float) -> bool:
        """Returns whether a call has failed of late that this user may make."""
        return self._clock() - self._failed_at_s < seconds

    def over(self, verb: str, *, is_for_all: bool = False) -> None:
        """Notes that this call has succeeded; the outage is over when no verb fails any more.

        With `is_for_all`, a Redis that answers this call answers all others as well.
        """
        if not self._failing:
            return
        now_s = self._clock()
        # Of a copy, as other threads may note theirs meanwhile.
        for failing, end_s in self._failing.copy().items():
            if failing == verb or (is_for_all and end_s <= now_s):
                self._failing.pop(failing, None)
        if self._is_said and not self._failing:
            away_s = now_s - self._since_s
            self._log.warning("Redis answers again redis=%s away_s=%.1f", self._where, away_s)
            self._silent_until_s = dict.fromkeys(self._silent_until_s, now_s + AGAIN_S)
            self._is_said = False
