"""Spaces out the tries of what fails repeatedly, and limits what the log says of it."""

import time

DELAYS_S = (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
DOUBTFUL_AFTER = 2  # failures in a row; requests are not queued for such a worker
REMIND_S = 30.0


class Backoff:
    """Counts failures in a row. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.failures = 0
        self._failing_since_s: float | None = None

    @property
    def delay_s(self) -> float:
        return DELAYS_S[min(self.failures, len(DELAYS_S) - 1)]

    @property
    def is_doubtful(self) -> bool:
        """Returns whether there were DOUBTFUL_AFTER failures: the next start may fail, too."""
        return self.failures >= DOUBTFUL_AFTER

    def fail(self, now_s: float) -> None:
        self.failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = now_s

    def succeed(self) -> None:
        self.failures = 0
        self._failing_since_s = None

    def has_failed_for(self, limit_s: float, now_s: float) -> bool:
        return self._failing_since_s is not None and now_s - self._failing_since_s > limit_s


class Reminder:
    def __init__(self) -> None:
        self._said = ""
        self._silent_until_s = 0.0

    def is_due(self, message: str) -> bool:
        """Returns whether this message is new, or REMIND_S old; if so, notes it as written."""
        now_s = time.monotonic()
        if message == self._said and now_s < self._silent_until_s:
            return False
        self._said, self._silent_until_s = message, now_s + REMIND_S
        return True
