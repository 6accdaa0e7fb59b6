"""Shows what a handler is given, and answers in every way a handler can.

The header `act` of the first row says what to do: a word and its arguments. Imports no torch, so
that its worker starts at once. Written against TorchServe's documented handler interface.
"""

import os
import time
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        return None
    words = (context.get_request_header(0, "act") or "rows").split()
    return ACTIONS[words[0]](data, context, *words[1:])


def rows(data, _context):
    return [
        {name: shown(value) for name, value in row.items()} if isinstance(row, dict) else shown(row)
        for row in data
    ]


def rows_as_text(data, _context):
    return [repr(row) for row in data]


def shown(value):
    text = bytes(value).decode("latin-1") if isinstance(value, bytearray | bytes) else value
    return [type(value).__name__, text]


def headers(data, context, *names):
    return [
        {name: context.get_request_header(index, name) for name in names}
        for index, _ in enumerate(data)
    ]


def about(data, context):
    """What the context says of the model; nothing that depends on the machine."""
    properties = context.system_properties
    return [
        {
            "model_name": context.model_name,
            "manifest_model": context.manifest and context.manifest["model"],
            "model_yaml_config": context.model_yaml_config,
            "batch_size": properties["batch_size"],
            "gpu_id": properties["gpu_id"],
            "server_name": properties["server_name"],
            "limit_max_image_pixels": properties["limit_max_image_pixels"],
            "is_model_dir_working_folder": Path(properties["model_dir"]).samefile("."),
            "files": sorted(path.name for path in Path().iterdir() if path.name != "__pycache__"),
            "request_ids": len(context.request_ids),
            "unknown_header": context.get_request_header(0, "no-such-header"),
        }
        for _ in data
    ]


def value(data, _context, kind):
    values = {
        "bytes": b"\x00\x01\xff",
        "bytearray": bytearray(b"array"),
        "str": "plain text, gr\u00fc\u00dfe",
        "empty": "",
        "dict": {"b": 1, "a": [1.5, None, True], "text": "<gr\u00fc\u00dfe>"},
        "list": [[1, 2], []],
        "number": 7,
        "float": 0.1,
        "bool": False,
        "none": None,
        "nan": float("nan"),
        "object": object(),
        "set": {1},
        "large": "x" * 400_000,
    }
    return [values[kind] for _ in data]


def status(data, context, code, *phrase):
    context.set_response_status(code=int(code), phrase=" ".join(phrase), idx=0)
    return ["the body of " + code for _ in data]


def status_of_all(data, context, code):
    context.set_all_response_status(code=int(code), phrase="All")
    return ["the body of all " + code for _ in data]


def content_type(data, context, text):
    for index, _ in enumerate(data):
        context.set_response_content_type(index, text)
    return ["typed" for _ in data]


def header(data, context, name, text):
    for index, _ in enumerate(data):
        context.set_response_header(index, name, text)
    return ["with a header" for _ in data]


def fail(_data, _context, kind):
    raise {
        "value": ValueError("a secret of the handler"),
        "memory": MemoryError(),
        "cuda": RuntimeError("CUDA error: invalid argument"),
        "assert": AssertionError(),
    }[kind]


def refuse(_data, _context, code):
    raise PredictionException("the handler refuses", int(code))


def refuse_plainly(_data, _context):
    raise PredictionException("the handler refuses without a code")


def shape(data, _context, kind):
    return {
        "scalar": 7,
        "text": "not a list",
        "dict": {"a": 1},
        "none": None,
        "short": [],
        "long": ["one", "two", "three", "four", "five", "six"],
        "tuple": tuple("x" for _ in data),
    }[kind]


def nap(data, _context, seconds):
    time.sleep(float(seconds))
    return ["slept" for _ in data]


def end(_data, _context, code):
    os._exit(int(code))


def stream(data, context, pieces, *words):
    for number in range(int(pieces)):
        if "header" in words:
            context.set_response_header(0, "x-piece", str(number))
        piece = f"piece {number}," if "json" not in words else {"piece": number}
        send_intermediate_predict_response(
            [piece for _ in data], context.request_ids, "A piece", 200, context
        )
    if "fail" in words:
        raise ValueError("after the first pieces")
    return ["end" for _ in data]


def per_row(data, _context):
    """Each row's own body, or a failure of the whole batch when a body asks for it."""
    bodies = [bytes(row["body"]).decode() for row in data]
    if "fail" in bodies:
        raise ValueError("one of the rows")
    return [f"{body} of {len(bodies)}" for body in bodies]


ACTIONS = {
    "rows": rows,
    "rows-as-text": rows_as_text,
    "stream": stream,
    "headers": headers,
    "about": about,
    "value": value,
    "status": status,
    "status-of-all": status_of_all,
    "content-type": content_type,
    "header": header,
    "fail": fail,
    "refuse": refuse,
    "refuse-plainly": refuse_plainly,
    "shape": shape,
    "nap": nap,
    "end": end,
    "per-row": per_row,
}
