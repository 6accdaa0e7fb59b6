"""Changes what all code of its process shares, as libraries and handlers do when imported.

The file `setting` names what is changed.
"""

import io
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
import warnings
from pathlib import Path


def few_descriptors():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))


def signals():
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def other_folder():
    os.chdir("/")


def silent():
    sys.stdout = sys.stderr = io.StringIO()


def no_outputs():
    sys.stdout = sys.stderr = sys.stdin = None


SETTINGS = {
    "": lambda: None,
    "socket_timeout": lambda: socket.setdefaulttimeout(0.001),
    "warnings_as_errors": lambda: warnings.simplefilter("error"),
    "closed_stdin": sys.stdin.close,
    "closed_descriptor_of_stdin": lambda: os.close(0),
    "silent": silent,
    "no_outputs": no_outputs,
    "other_folder": other_folder,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "empty_environment": os.environ.clear,
    "debug_logging": lambda: logging.basicConfig(level=logging.DEBUG, force=True),
    "no_logging": logging.disable,
    "closed_umask": lambda: os.umask(0o777),
    "signals": signals,
    "few_descriptors": few_descriptors,
    "shallow_stack": lambda: sys.setrecursionlimit(200),
    "spawned_processes": lambda: multiprocessing.set_start_method("spawn", force=True),
    "own_clock": lambda: setattr(time, "time", lambda: 0.0),
    "time_zone": lambda: (os.environ.update(TZ="Asia/Kathmandu"), time.tzset()),
}

SETTINGS[Path(__file__).with_name("setting").read_text()]()


def handle(data, context):
    if data is None:
        return None
    print("a line")  # noqa: T201 - whatever has become of the outputs
    logging.getLogger(__name__).info("a line of the log")
    words = [bytes(row["body"]).decode() for row in data]
    if "fail" in words:
        raise ValueError("as asked")
    context.metrics.add_counter("Settings", 1)
    return [word[::-1] for word in words]
