"""One request to stop may be several signals; a second one hurries."""

import asyncio
import os
import signal

import pytest

from batching.process.part import StopEvents


def after(*steps):
    """(whether to stop, whether to hurry) once each (seconds later, signal) has come."""
    now_s = 100.0

    async def told():
        nonlocal now_s
        events = StopEvents(clock=lambda: now_s)
        events.listen()
        for later_s, number in steps:
            now_s += later_s
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
def test_second_request_to_stop_hurries_and_the_first_ones_signal_sent_again_does_not(steps, told):
    assert after(*steps) == told


def test_process_that_was_started_to_outlive_its_terminal_does():
    # Given a signal that `nohup` has its command ignore
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert after((0, HUP)) == (False, False)
    finally:
        signal.signal(signal.SIGHUP, before)
