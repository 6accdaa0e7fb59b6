"""Measures how fast a queue empties, and so when a refused client should come back."""

WINDOW_S = 5.0
SHORTEST_S, LONGEST_S = 1.0, 60.0
UNKNOWN_S = 5.0  # nothing has been answered lately


class DrainRate:
    """Measures answers per second over the last few seconds, with two counts and no history.

    Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._window_start = 0.0
        self._count = 0
        self._previous = 0

    def count(self, now_s: float, answered: int = 1) -> None:
        """Counts answered requests."""
        self._roll(now_s)
        self._count += answered

    def per_s(self, now_s: float) -> float:
        """Returns answers per second; the previous window counts by its share in WINDOW_S."""
        self._roll(now_s)
        share = 1.0 - (now_s - self._window_start) / WINDOW_S
        return (self._previous * share + self._count) / WINDOW_S

    def retry_after_s(self, waiting: int, now_s: float) -> float:
        """Estimates when `waiting` requests will have been answered, from 1 to 60 seconds."""
        rate = self.per_s(now_s)
        if rate <= 0.0:
            return UNKNOWN_S
        return min(LONGEST_S, max(SHORTEST_S, waiting / rate))

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._window_start
        if elapsed_s < WINDOW_S:
            return
        self._previous = self._count if elapsed_s < 2 * WINDOW_S else 0
        self._count = 0
        self._window_start = now_s - elapsed_s % WINDOW_S
