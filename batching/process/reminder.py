"""Keeps a failure that comes at every try from filling the log."""

import time

REMIND_S = 30.0


class Reminder:
    """Remembers the last words in the log, and when they were written."""

    def __init__(self) -> None:
        self._said = ""
        self._silent_until_s = 0.0

    def is_due(self, words: str) -> bool:
        """Returns whether these words are new, or REMIND_S old; if so, notes them as written."""
        now_s = time.monotonic()
        if words == self._said and now_s < self._silent_until_s:
            return False
        self._said, self._silent_until_s = words, now_s + REMIND_S
        return True
