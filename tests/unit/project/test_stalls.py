"""Times are not measured while the machine stands still, which has to be noticed."""

import signal
import time

import psutil

from tests.stalls import Stalls
from tests.support import eventually


def test_stall_is_noticed_with_its_time():
    before_s = time.monotonic()
    others = set(psutil.Process().children())
    with Stalls() as stalls:
        watcher, *_ = set(psutil.Process().children()) - others
        # When one core's watcher does not run
        start_s = time.monotonic()
        watcher.send_signal(signal.SIGSTOP)
        eventually(lambda: watcher.status() == psutil.STATUS_STOPPED)
        time.sleep(0.02)  # the time under test
        watcher.send_signal(signal.SIGCONT)
        # Then
        eventually(lambda: stalls.hit(start_s, time.monotonic()), 5)
        assert not stalls.hit(before_s - 1.0, before_s)
    assert not set(psutil.Process().children()) - others
