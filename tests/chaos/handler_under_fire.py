"""The handler that the chaos tests serve: does what each body says, and writes down every call.

A body is `command argument|unique text`; one without `|` is echoed. The archive holds a file
`ledger` that names the file to write to, and may hold `pace`: seconds that each call takes.
"""

import ctypes
import json
import os
import resource
import signal
import time
from pathlib import Path

LEDGER = Path("ledger").read_text(encoding="utf-8")
PACE_S = float(Path("pace").read_text(encoding="utf-8")) if Path("pace").exists() else 0.0
HOG_BYTES = 8 * 1024**3
CHILD_BYTES = 2 * 1024**3
HOLD_S = 30.0


def write_line(record):
    line = json.dumps(record).encode() + b"\n"
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)  # one call: whole lines also when several workers write
    finally:
        os.close(descriptor)


if Path("dies_at_load").exists():
    write_line({"bodies": ["load"], "request_ids": [], "started_at": time.monotonic(), "pid": 0})
    os._exit(1)


def handle(data, context):
    started_at = time.monotonic()
    if data is None:
        return None
    bodies = [bytes(row["body"]).decode() for row in data]
    write_line(
        {
            "bodies": [body.rstrip()[:200] for body in bodies],
            "request_ids": [context.request_ids[index] for index in range(len(bodies))],
            "started_at": started_at,
            "pid": os.getpid(),
        }
    )
    time.sleep(PACE_S)
    return [act(body) for body in bodies]


def act(body):
    command, bar, _ = body.partition("|")
    if not bar:
        return body
    name, *arguments = command.split()
    return ACTIONS[name](body, *arguments)


def nap(body, seconds):
    time.sleep(float(seconds))
    return body


def hold(body):
    """Ends once the test has opened the gate and this worker was told to stop."""
    gate = Path(LEDGER).with_suffix(".gate")
    end = time.monotonic() + HOLD_S
    while time.monotonic() < end:
        if gate.exists() and signal.getsignal(signal.SIGTERM).__self__._should_stop:
            return body
        time.sleep(0.01)
    raise TimeoutError("the gate was not opened, or the worker was not told to stop")


def sign(body, seconds):
    time.sleep(float(seconds))
    return f"{body} by {os.getpid()}"


def hog(body):
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, before[1]))
    try:
        bytearray(HOG_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return body


ACTIONS = {
    "sleep": nap,
    "hold": hold,
    "sign": sign,
    "hog": hog,
    "segfault": lambda _body: ctypes.string_at(0),
    "killed": lambda _body: os.kill(os.getpid(), signal.SIGKILL),
    "long": lambda _body, size: "x" * int(size),
}
