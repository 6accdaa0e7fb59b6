"""The timer that ends a worker whose handler takes too long: it runs while that is at work only."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
# In a process of its own: tests have that timer for themselves.
LATE_SENDER = """
import signal, threading
from workers.handling.time_limits import timed

is_sending, has_returned = threading.Event(), threading.Event()

def send():
    is_sending.set()
    assert has_returned.wait(5)

def handle():
    thread.start()
    assert is_sending.wait(5)

handle, send = timed(handle, send, 60.0)
thread = threading.Thread(target=send)
handle()
has_returned.set()
thread.join()
print(signal.getitimer(signal.ITIMER_REAL)[0])
"""


def test_timer_does_not_run_on_when_a_thread_sends_after_its_handler():
    # When
    command = [sys.executable, "-c", LATE_SENDER]
    printed = subprocess.check_output(command, cwd=ROOT)

    # Then: an idle worker would die of it
    assert printed == b"0.0\n"
