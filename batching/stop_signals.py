"""Tells a second wish to stop, which cuts a drain short, from the first one's signal sent twice."""

import time

# `timeout` and other wrappers signal their child and then its whole group, which it belongs to.
ONE_WISH_S = 0.2


class StopSignals:
    """The signals that ask a process to stop."""

    def __init__(self) -> None:
        self._wish_ends_s = float("-inf")

    def is_new_wish(self) -> bool:
        """Whether the signal that has come now is a new wish, and not the last one's sent again."""
        now_s = time.monotonic()
        if now_s < self._wish_ends_s:
            return False
        self._wish_ends_s = now_s + ONE_WISH_S
        return True
