"""Logs that Redis is away: once, then now and then, and once when it is back.

All callers of Redis try again many times a second, and would all log the same.
"""

import logging
import math
import time
from collections.abc import Callable

from batching.process.retries import REMIND_S
from batching.settings.redis_url import RedisUrl
from batching.store.connections.lost_connections import REFUSALS
from batching.store.redis_errors import FORBIDDEN, UNWELCOME

# A failure so soon after an outage is not news: Redis may come and go for a while.
AGAIN_S = 5.0


class OutageLog:
    """Logs that Redis is away, once for all callers in one process."""

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

    def note(self, verb: str, error: Exception) -> None:
        """Notes that this call has failed; logs it unless the log has said so lately."""
        now_s = self._clock()
        if not self._failing:
            self._since_s = now_s
        error = _innermost(error)
        if isinstance(error, FORBIDDEN):
            # A call that this user may not make fails while all others succeed.
            self._failing[verb] = now_s + AGAIN_S
        else:
            self._failing[verb] = self._failed_at_s = now_s
        words = _words(error)
        # A server that comes back with another password is news.
        if now_s < self._silent_until_s.get(words, now_s):
            return
        self._silent_until_s[words], self._is_said = now_s + REMIND_S, True
        self._log.warning(
            "%s redis=%s verb=%s away_s=%.0f: %s",
            words,
            self._where,
            verb,
            now_s - self._since_s,
            str(error) or type(error).__name__,
        )

    def was_within(self, seconds: float) -> bool:
        """Returns whether a call has failed of late that this user may make."""
        return self._clock() - self._failed_at_s < seconds

    def over(self, verb: str, *, is_for_all: bool = False) -> None:
        """Notes that this call has succeeded; the outage is over when no verb fails any more.

        Args:
            verb: as `note` was told.
            is_for_all: a Redis that answers this call answers all others as well.
        """
        if not self._failing:
            return
        now_s = self._clock()
        # Of a copy, as other threads may note theirs meanwhile.
        for one, end_s in self._failing.copy().items():
            if one == verb or (is_for_all and end_s <= now_s):
                self._failing.pop(one, None)
        if self._failing:
            return
        if self._is_said:
            self._log.warning(
                "Redis answers again redis=%s away_s=%.1f", self._where, now_s - self._since_s
            )
            self._silent_until_s = dict.fromkeys(self._silent_until_s, now_s + AGAIN_S)
            self._is_said = False


def _innermost(error: Exception) -> Exception:
    # A refusal comes wrapped: in our own error for clients, in redis-py's for connections.
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _words(error: Exception) -> str:
    if isinstance(error, UNWELCOME):
        return "Redis refuses this user or password"
    if isinstance(error, REFUSALS):
        return "Redis refuses"
    return "Redis does not answer"
