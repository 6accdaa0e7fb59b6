"""One wish to stop may be several signals; a second wish is another matter."""

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from batching.process import stop_signals
from batching.process.stop_signals import StopEvents


@pytest.fixture
def clock(monkeypatch):
    """[seconds]"""
    now = [100.0]
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def after(clock, *steps):
    """(whether to stop, whether to hurry) once each (seconds later, signal) has come."""

    async def told():
        events = StopEvents()
        events.listen()
        for later_s, number in steps:
            clock[0] += later_s
            heard = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)  # handlers are called in the signals' order
            await asyncio.wait_for(heard.wait(), 10)
        return events.stop.is_set(), events.hurry.is_set()

    return asyncio.run(told())


TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@pytest.mark.usefixtures("hears_hangup")
@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([(0, TERM)], (True, False)),
        ([(0, TERM), (0.1, TERM)], (True, False)),
        ([(0, TERM), (0.1, INT)], (True, False)),
        ([(0, TERM), (0.3, TERM)], (True, True)),
        ([(0, INT), (0.1, INT), (0.3, INT)], (True, True)),
        ([(0, HUP)], (True, False)),
        ([(0, HUP), (0.3, HUP)], (True, False)),
        ([(0, TERM), (0.3, HUP)], (True, False)),
        ([(0, HUP), (0.3, TERM)], (True, False)),
        ([(0, HUP), (0.3, TERM), (0.3, TERM)], (True, True)),
    ],
)
def test_second_wish_to_stop_hurries_and_the_first_ones_signal_sent_again_does_not(
    steps, told, clock
):
    assert after(clock, *steps) == told


def test_process_that_was_started_to_outlive_its_terminal_does(clock):
    # Given a signal that `nohup` has its command ignore
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert after(clock, (0, HUP)) == (False, False)
    finally:
        signal.signal(signal.SIGHUP, before)
