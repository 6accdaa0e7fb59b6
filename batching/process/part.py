"""Starts a part, an ingress or a node; reports that it is ready, and stops it at a signal.

A child of `ferry up` writes lines to the descriptor in `FERRY_READY_FD`: one JSON object for each
startup model that failed, then `ready`. A part that is started again has no such descriptor.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from batching.process.logs import configure_logging
from batching.settings.loading import load_settings
from batching.settings.settings import Settings, SettingsError, UnusableNow

EXIT_UNUSABLE = 2
_EXIT_UNUSABLE_NOW = 1
READY_VARIABLE = "FERRY_READY_FD"
LAUNCH_VARIABLE = "FERRY_LAUNCH"
READY_LINE = "ready"
# `timeout` and other wrappers signal their child, and then its group, which includes the child.
REPEAT_WINDOW_S = 0.2


def run_part(run: Callable[[Settings], int], settings: Settings | None = None) -> int:
    """Runs a part with these settings, or the environment's; returns its exit code.

    The code is 2 if no start with these settings can succeed, 1 if a later one may.
    """
    try:
        settings = settings or load_settings()[0]
        configure_logging(settings.log_level)
        return run(settings)
    except SettingsError as error:
        logging.getLogger(run.__module__).error("cannot start: %s", error)
        return _EXIT_UNUSABLE_NOW if isinstance(error, UnusableNow) else EXIT_UNUSABLE


class Launch(StrEnum):
    """Says how this process was started."""

    AWAITED = "awaited"  # by an operator with `ferry up`
    AGAIN = "again"  # by the same parent, after its predecessor died
    # By `ferry ingress` or `ferry node`, which a container or systemd may have started again.
    ALONE = "alone"


def launch() -> Launch:
    return Launch(os.environ.get(LAUNCH_VARIABLE, Launch.ALONE))


def notify_ready(failures: Iterable[Mapping[str, str]] = ()) -> None:
    """Reports readiness through the descriptor in FERRY_READY_FD, if there is one; only once."""
    number = os.environ.pop(READY_VARIABLE, "")
    if not number.isdigit():
        return
    lines = [*(json.dumps(failure) for failure in failures), READY_LINE]
    # The reader may have given up; serving does not depend on it.
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines).encode())


def ends_with_terminal() -> bool:
    """Returns whether SIGHUP should end this process; not if `nohup` started it."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


class StopSignals:
    """Counts requests to stop; signals that come together count as one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._request_ends_s = float("-inf")

    def is_new_request(self) -> bool:
        now_s = self._clock()
        if now_s < self._request_ends_s:
            return False
        self._request_ends_s = now_s + REPEAT_WINDOW_S
        self.count += 1
        return True


class StopEvents:
    """Sets `stop` at the first request to stop, and at a second one `hurry`, which ends a drain.

    The end of the terminal never counts as a second one: both the shell and the kernel signal it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._signals = StopSignals(clock)

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if ends_with_terminal():
            loop.add_signal_handler(signal.SIGHUP, self.stop.set)

    def _on_signal(self) -> None:
        if self._signals.is_new_request():
            self.stop.set()
            if self._signals.count > 1:
                self.hurry.set()
