"""A handler that answers in pieces. A body is words, each of them a step."""

import os
import time
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException

LEDGER = Path("ledger").read_text(encoding="utf-8")


def note(text):
    with Path(LEDGER).open("a", encoding="utf-8") as file:
        file.write(f"{text} {os.getpid()}\n")


def handle(data, context):
    if data is None:
        return None
    bodies = [bytes(row["body"]).decode() for row in data]
    note(f"run:{bodies[0]}")
    last = [""] * len(bodies)
    for step in bodies[0].split():
        name, _, value = step.partition(":")
        if name == "last":
            last = [value] * len(bodies)
        else:
            STEPS[name](value, bodies, context)
    note("end")
    return last


def send(value, bodies, context):
    for index in range(len(bodies)):
        context.set_response_content_type(index, "text/plain")
    pieces = [value] * len(bodies)
    send_intermediate_predict_response(pieces, context.request_ids, "", 200, context)


def send_own(_value, bodies, context):
    pieces = [f"[{body.rpartition(':')[2]}]" for body in bodies]
    send_intermediate_predict_response(pieces, context.request_ids, "", 200, context)


def send_many(value, bodies, context):
    size, _, count = value.partition("x")
    for number in range(int(count)):
        send(str(number).ljust(int(size), "."), bodies, context)
    note("sent")


def send_forever(value, bodies, context):
    try:
        while True:
            send(value * 100, bodies, context)
            time.sleep(0.005)
    except Exception as error:
        note(f"stopped:{type(error).__name__}")
        raise


def hold(_value, _bodies, _context):
    while not Path(f"{LEDGER}.go").exists():
        time.sleep(0.005)


def report(value, _bodies, context):
    share, _, text = value.partition(",")
    context.report_progress(float(share), text.replace("_", " "))


def set_status(value, bodies, context):
    context.set_all_response_status(int(value), "")


def fail(value, _bodies, _context):
    raise PredictionException("the handler gave up", int(value or 500))


STEPS = {
    "send": send,
    "own": send_own,
    "me": lambda _value, _bodies, _context: None,
    "many": send_many,
    "forever": send_forever,
    "status": set_status,
    "report": report,
    "hold": hold,
    "sleep": lambda value, _bodies, _context: time.sleep(float(value)),
    "die": lambda _value, _bodies, _context: os._exit(9),
    "fail": fail,
}
