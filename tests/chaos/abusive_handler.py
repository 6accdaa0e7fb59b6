"""The scripted handler, in whose batches more can go wrong: what it does to its own process.

Archived with the scripted handler as a module. A file `forks_at_load` makes its loading fork.
"""

import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

from scripted_handler import ACTIONS, handle

MUCH_BYTES = 50_000_000
EXIT_CODE = 7
assert handle  # the entry point

if Path("forks_at_load").exists():
    os.fork()


class Abuse(BaseException):
    pass


def throw(error):
    raise error


def fork(bodies, end="return"):
    """Has the child come back in this way, before the worker does."""
    child = os.fork() if end != "native" else ctypes.CDLL(None).fork()
    if child:
        _, status = os.waitpid(child, 0)
        return [f"{body} {os.waitstatus_to_exitcode(status)}" for body in bodies]
    if end == "raise":
        raise ValueError("of the child")
    if end == "exit":
        sys.exit(EXIT_CODE)
    return bodies


def fork_in_thread(bodies):
    thread = threading.Thread(target=os.fork)
    thread.start()
    thread.join()
    return bodies


def fork_by_multiprocessing(bodies):
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(EXIT_CODE,))
    child.start()
    child.join()
    return [f"{body} {child.exitcode}" for body in bodies]


def print_much(bodies):
    line = "much of it " * 100
    for _ in range(MUCH_BYTES // len(line)):
        sys.stdout.write(f"{line}\n")
    return bodies


def ignore_signals(bodies):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return bodies


def start_threads(bodies):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    return bodies


def recurse(bodies):
    return recurse(bodies) + bodies


def leave_home(bodies):
    os.chdir("/")
    os.environ.clear()
    return bodies


def nested(depth):
    found = []
    for _ in itertools.repeat(None, depth):
        found = [found]
    return found


def each(make):
    """Returns an action that puts this in place of the answers to its own requests."""
    return lambda bodies: [make() if "|" in body else body for body in bodies]


ACTIONS |= {
    "fork": fork,
    "fork-thread": fork_in_thread,
    "fork-process": fork_by_multiprocessing,
    "_exit": lambda _bodies: os._exit(0),
    "interrupt": lambda _bodies: throw(KeyboardInterrupt()),
    "base": lambda _bodies: throw(Abuse()),
    "print": print_much,
    "close-output": lambda bodies: (os.closerange(0, 3), bodies)[1],
    "close-all": lambda bodies: (os.closerange(3, 1000), bodies)[1],
    "deaf": ignore_signals,
    "threads": start_threads,
    "recurse": recurse,
    "homeless": leave_home,
    "none": lambda _bodies: None,
    "lazy": lambda bodies: (body for body in bodies),
    "deep": each(lambda: nested(100_000)),
    "surrogate": each(lambda: "\ud800"),
    "generator": each(lambda: (item for item in ())),
}
