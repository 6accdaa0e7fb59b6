"""When a failure that comes at every try is logged: while its words are new, then now and then."""

import time

REMIND_S = 30.0


class Reminder:
    """Remembers what was said last, and when."""

    def __init__(self) -> None:
        self._said = ""
        self._silent_until_s = 0.0

    def is_due(self, words: str) -> bool:
        """Returns whether these words are worth a line now; they count as said then."""
        now_s = time.monotonic()
        if words == self._said and now_s < self._silent_until_s:
            return False
        self._said, self._silent_until_s = words, now_s + REMIND_S
        return True
