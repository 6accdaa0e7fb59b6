"""Tells a second request to stop, which cuts a drain short, from the first signal sent twice."""

import asyncio
import signal
import time
from collections.abc import Callable

# `timeout` and other wrappers signal their child and then its whole group, which it belongs to.
REPEAT_WINDOW_S = 0.2


def ends_with_terminal() -> bool:
    """Returns whether SIGHUP is to end this process: not one that `nohup` started."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


class StopSignals:
    """Counts signals that come together as one request to stop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._request_ends_s = float("-inf")

    def is_new_request(self) -> bool:
        """Returns whether the signal that has just come is a new request to stop."""
        now_s = self._clock()
        if now_s < self._request_ends_s:
            return False
        self._request_ends_s = now_s + REPEAT_WINDOW_S
        return True


class StopEvents:
    """Turns signals into events of a loop.

    The first request to stop sets `stop`, a second one sets `hurry`. The end of the terminal counts
    as a first request only, as both the shell and the kernel signal it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._signals = StopSignals(clock)
        self._requests = 0

    def listen(self) -> None:
        """Handles signals on the running event loop from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if ends_with_terminal():
            loop.add_signal_handler(signal.SIGHUP, self.stop.set)

    def _on_signal(self) -> None:
        if not self._signals.is_new_request():
            return
        self._requests += 1
        self.stop.set()
        if self._requests > 1:
            self.hurry.set()
