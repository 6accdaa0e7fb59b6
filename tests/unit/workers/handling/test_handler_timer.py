"""What happens around a call of the handler: its timer runs only while the handler is at work."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
# In a process of its own: tests have that timer for themselves.
LATE_SENDER = """
import signal, threading
from workers.handling.handler_timer import HandlerTimer

timer = HandlerTimer(60.0)
is_sending, has_returned = threading.Event(), threading.Event()

def send():
    timer.pause()
    is_sending.set()
    assert has_returned.wait(5)
    timer.resume()

timer.start()
thread = threading.Thread(target=send)
thread.start()
assert is_sending.wait(5)
timer.stop()
has_returned.set()
thread.join()
print(signal.getitimer(signal.ITIMER_REAL)[0])
"""


def test_timer_does_not_run_on_when_a_thread_sends_after_its_handler():
    # When
    command = [sys.executable, "-c", LATE_SENDER]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
    printed = subprocess.check_output(command, cwd=ROOT, env=os.environ | path)

    # Then: an idle worker would die of it
    assert printed == b"0.0\n"
