"""When a batch leaves. Pure: numbers in, seconds left out."""

from dataclasses import dataclass
from typing import Protocol


class BatchPolicy(Protocol):
    """Decides how long a partial batch may still wait."""

    @property
    def batch_size(self) -> int:
        """Largest batch."""

    @property
    def patience_s(self) -> float:
        """Longest wait of a partial batch, from the arrival of its oldest request."""

    def seconds_left(self, waiting: int, oldest_age_s: float) -> float:
        """Seconds for which `waiting` requests should go on waiting for more; 0 = leave now."""


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """A full batch leaves at once, a partial one when its oldest request is old enough.

    TorchServe starts the clock when a worker takes the first job; here it starts when that request
    arrives, so time spent waiting for a busy worker counts.
    """

    batch_size: int
    patience_s: float

    def seconds_left(self, waiting: int, oldest_age_s: float) -> float:
        """Seconds for which `waiting` requests should go on waiting for more; 0 = leave now."""
        if waiting >= self.batch_size:
            return 0.0
        return max(0.0, self.patience_s - oldest_age_s)
