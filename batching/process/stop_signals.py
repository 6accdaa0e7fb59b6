"""Tells a second wish to stop, which cuts a drain short, from the first one's signal sent twice."""

import asyncio
import signal
import time

# `timeout` and other wrappers signal their child and then its whole group, which it belongs to.
ONE_WISH_S = 0.2


def ends_with_terminal() -> bool:
    """Returns whether SIGHUP is to end this process.

    Whoever starts one by `nohup` does not want that.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


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


class StopEvents:
    """The same for a process with an event loop.

    `stop` is set by the first wish, `hurry` by a second one. The end of its terminal is a first
    wish only: a shell and the kernel both tell of it.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._signals = StopSignals()
        self._wishes = 0

    def listen(self) -> None:
        """Signals are heard from now on, on the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if ends_with_terminal():
            loop.add_signal_handler(signal.SIGHUP, self.stop.set)

    def _on_signal(self) -> None:
        if not self._signals.is_new_wish():
            return
        self._wishes += 1
        self.stop.set()
        if self._wishes > 1:
            self.hurry.set()
