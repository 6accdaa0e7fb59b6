"""Time limits of a worker process: a timer of the kernel ends a process that exceeds them.

SIGALRM needs no cooperation of a handler that hangs in C++ or holds the interpreter lock. Every
thread's stack is written before the process ends, and its node sees how it ended.
"""

import signal
from collections.abc import Callable
from typing import Any

# For what a handler has the interpreter do at its end, and for giving a device's memory back.
END_S = 3.0


def timed(
    entry: Callable[..., Any], send: Callable[..., Any], timeout_s: float
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the entry point, ended by the kernel together with its process after `timeout_s`.

    And the call by which it sends: meanwhile the timer stands, and starts from zero afterwards.
    Costs two system calls per batch. The node sees how the process died and releases its requests.
    """
    is_at_work = False

    def run(*arguments: Any) -> Any:
        nonlocal is_at_work
        is_at_work = True
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            return entry(*arguments)
        finally:
            is_at_work = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def run_untimed(*arguments: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return send(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, timeout_s)
            # A thread of the handler may still send when that has returned: nobody would stop it.
            # Looked at afterwards, as it may return at any moment.
            if not is_at_work:
                signal.setitimer(signal.ITIMER_REAL, 0)

    return run, run_untimed


def end_in_time() -> None:
    """Has the kernel end the process if the interpreter does not end in time.

    It waits for every thread that is no daemon, and a handler's may run for ever. Meanwhile nobody
    could take over what this worker holds: its requests, its place, its device.
    """
    signal.setitimer(signal.ITIMER_REAL, END_S)
