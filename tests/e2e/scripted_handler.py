"""A handler that does what its requests say, and writes down every call.

A body is `command argument|anything`; one without `|` is only echoed. Archived with a file `ledger`
that names the file to write to. Imports no torch, so that its worker starts at once.
"""

import ctypes
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from ts.utils.util import PredictionException

LEDGER = Path("ledger").read_text(encoding="utf-8")

if Path("load_delay").exists():
    time.sleep(float(Path("load_delay").read_text(encoding="utf-8")))
if Path("load_error").exists():
    raise RuntimeError(Path("load_error").read_text(encoding="utf-8"))


def handle(data, context):
    started_at = time.monotonic()
    if data is None:
        return None
    bodies = [bytes(row["body"]).decode() for row in data]
    write_down(bodies, started_at, context)
    return act(bodies)


def write_down(bodies, started_at, context):
    request_ids = [context.request_ids[index] for index in range(len(bodies))]
    record = {
        "bodies": bodies,
        "request_ids": request_ids,
        "started_at": started_at,
        "pid": os.getpid(),
    }
    line = json.dumps(record).encode() + b"\n"
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)  # one call: whole lines also when several workers write
    finally:
        os.close(descriptor)


def act(bodies):
    commands = [body.partition("|")[0].split() for body in bodies if "|" in body]
    if not commands:
        return bodies
    name, *arguments = commands[0]
    return ACTIONS[name](bodies, *arguments)


def nap(bodies, seconds):
    time.sleep(float(seconds))
    return bodies


def fail(_bodies, kind):
    raise {"value": ValueError, "memory": MemoryError}[kind]("secret of the handler")


def refuse(_bodies, status):
    raise PredictionException("the handler refuses", int(status))


def use_pools(bodies, count):
    for _ in range(int(count)):
        with multiprocessing.Pool(4) as pool:
            pool.map(len, bodies)
    return bodies


def crash(_bodies):
    ctypes.string_at(0)


ACTIONS = {
    "sleep": nap,
    "raise": fail,
    "refuse": refuse,
    "pools": use_pools,
    "segfault": crash,
    "exit": lambda _bodies: sys.exit(),
    "short": lambda bodies: bodies[:-1],
    "scalar": lambda _bodies: 7,
    "object": lambda bodies: [object() if "|" in body else body for body in bodies],
}
