"""A handler that does what its requests say, and writes down every call.

A body is `command argument|anything`; one without `|` is only echoed. The first command of a batch
is carried out for the whole batch. Archived with a file `ledger` that names the file to write to;
further files set the pace of each call, or make the import slow, fail or end the process.

Imports no torch, so that its worker starts at once.
"""

import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

from ts.utils.util import PredictionException

LEDGER = Path("ledger").read_text(encoding="utf-8")
PACE_S = float(Path("pace").read_text(encoding="utf-8")) if Path("pace").exists() else 0.0
HOG_BYTES = 8 * 1024**3
CHILD_BYTES = 2 * 1024**3
HOLD_S = 30.0


def write_down(bodies, request_ids, started_at):
    record = {
        "bodies": [body.rstrip()[:200] for body in bodies],
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


if Path("load_delay").exists():
    time.sleep(float(Path("load_delay").read_text(encoding="utf-8")))
if Path("load_error").exists():
    raise RuntimeError(Path("load_error").read_text(encoding="utf-8"))
if Path("dies_at_load").exists():
    write_down(["load"], [], time.monotonic())
    os._exit(1)


def handle(data, context):
    started_at = time.monotonic()
    if data is None:
        return None
    bodies = [bytes(row["body"]).decode() for row in data]
    write_down(bodies, [context.request_ids[index] for index in range(len(bodies))], started_at)
    time.sleep(PACE_S)
    return act(bodies)


def act(bodies):
    commands = [body.partition("|")[0].split() for body in bodies if "|" in body]
    if not commands:
        return bodies
    name, *arguments = commands[0]
    return ACTIONS[name](bodies, *arguments)


def nap(bodies, seconds):
    time.sleep(float(seconds))
    return bodies


def deafen(bodies, seconds):
    """Ends its own alarm, as handlers do that set one, and hears of no other."""
    signal.alarm(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return nap(bodies, seconds)


def hold(bodies, until=""):
    """Ends once the test has let all workers go on, or this one.

    `hold stop` also waits until this worker has been told to stop: it is its last batch.
    """
    gates = [Path(f"{LEDGER}.go"), Path(f"{LEDGER}.{os.getpid()}.go")]
    end = time.monotonic() + HOLD_S
    while time.monotonic() < end:
        is_told = not until or signal.getsignal(signal.SIGTERM).__self__._should_stop
        if is_told and any(gate.exists() for gate in gates):
            return bodies
        time.sleep(0.01)
    raise TimeoutError("the test did not let this worker go on, or no one told it to stop")


def sign(bodies):
    return [f"{body} by {os.getpid()}" for body in hold(bodies)]


def fail(_bodies, kind):
    raise {"value": ValueError, "memory": MemoryError}[kind]("secret of the handler")


def refuse(_bodies, status):
    raise PredictionException("the handler refuses", int(status))


def use_pools(bodies, count):
    for _ in range(int(count)):
        with multiprocessing.Pool(4) as pool:
            pool.map(len, bodies)
    return bodies


def hog(bodies):
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, before[1]))
    try:
        bytearray(HOG_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return bodies


ACTIONS = {
    "sleep": nap,
    "deaf": deafen,
    "hold": hold,
    "sign": sign,
    "raise": fail,
    "refuse": refuse,
    "pools": use_pools,
    "hog": hog,
    "segfault": lambda _bodies: ctypes.string_at(0),
    "killed": lambda _bodies: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda _bodies: sys.exit(),
    "short": lambda bodies: bodies[:-1],
    "scalar": lambda _bodies: 7,
    "long": lambda bodies, size: ["x" * int(size) if "|" in body else body for body in bodies],
    "object": lambda bodies: [object() if "|" in body else body for body in bodies],
}
