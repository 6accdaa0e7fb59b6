"""`ferry.local`: runs a model in Python in this process, as a server would, for tests."""

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import msgspec

from batching.errors import BadRequest
from batching.protocol import Part
from ferry.modeling import BadInput
from workers.machine import ts_folder

_DEFAULT_BATCH_SIZE = 32
# Encoders read tensors as handlers do, with the package `ts`.
if str(ts_folder()) not in sys.path:
    sys.path.append(str(ts_folder()))

from workers.python_models.decoding import Row  # noqa: E402
from workers.python_models.python_model import (  # noqa: E402
    JSON_TYPE,
    TEXT_TYPE,
    PythonModel,
    encode,
    no_requests,
)
from workers.python_models.targets import find_model  # noqa: E402


def local(
    target: Callable[..., Any], *, device: str = "cpu"
) -> Callable[[Iterable[Any]], list[Any]]:
    """Loads a class of `ferry.Model`, or a function that takes batches, and warms it up here.

    Returns:
        A function that takes rows as clients would send them, and returns the list of answers, with
        a `ferry.BadInput` in the place of each refused row. A row is bytes of a file, text, an
        image, what becomes JSON, or the fields of a form: a dict with such values.

    Raises:
        TypeError: it is no model.
        Exception: whatever its `load` raises; when it is called, whatever `predict` raises.
    """
    module = ModuleType(target.__module__)
    setattr(module, target.__name__, target)
    model = find_model(module, target.__name__)
    batch_size = int(getattr(model, "batch_size", _DEFAULT_BATCH_SIZE))
    python_model = PythonModel(model, target.__name__, model.version)
    python_model.load(device, batch_size)

    def answers(rows: Iterable[Any]) -> list[Any]:
        waiting, answered = iter(rows), []
        while batch := [_row(value) for value in itertools.islice(waiting, batch_size)]:
            streamed: dict[int, list[tuple[bytes, str]]] = defaultdict(list)

            def send(pieces: Mapping[int, tuple[bytes, str]]) -> None:
                for index, piece in pieces.items():
                    streamed[index].append(piece)  # noqa: B023 - it is called within this turn

            outcomes = python_model.answer(batch, no_requests, send)
            answered += [_value(outcome, streamed[i]) for i, outcome in enumerate(outcomes)]
        return answered

    return answers


def _row(value: Any) -> Row:
    """Returns a dict with a file among its values as a form, all else as a body."""

    def part(name: str, content: Any) -> Part:
        body, kind = encode(content)
        return Part(name, kind, bytearray(body))

    parts = [part(*field) for field in value.items()] if isinstance(value, dict) else []
    if all(it.content_type in (JSON_TYPE, TEXT_TYPE) for it in parts):
        parts = [part("body", value)]
    return Row({it.name: it for it in parts})


def _value(outcome: Any, pieces: list[tuple[bytes, str]]) -> Any:
    if isinstance(outcome, BadRequest):
        return BadInput(outcome.message)
    if isinstance(outcome, Exception):
        return outcome
    body = b"".join([*(piece for piece, _ in pieces), outcome.body])
    kind = pieces[0][1] if pieces else outcome.headers.get("content-type", "")
    if kind.startswith("text/"):
        return body.decode(errors="replace")
    return msgspec.json.decode(body) if kind == JSON_TYPE and not pieces else body
