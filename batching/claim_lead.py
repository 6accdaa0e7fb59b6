"""Learns how long before the end of its window a partial batch must be claimed."""

START_S = 0.0005
LIMIT_S = 0.002
STEP_S = 0.0001


class ClaimLead:
    """The time between waking up and having the batch in hand, learned on this machine.

    This is the timer's rounding (a millisecond with poll()), the scheduler's delay and the claim
    itself. The estimate follows the median in steps, so that one long pause moves it no more than
    a short one. It is bounded, so that a busy machine cannot shorten the window by much.
    """

    def __init__(self) -> None:
        self.seconds = START_S

    def observe(self, late_s: float) -> None:
        """Learns that a batch was in hand this long after its window ended; negative: before."""
        step_s = STEP_S if late_s > 0 else -STEP_S
        self.seconds = min(max(0.0, self.seconds + step_s), LIMIT_S)
