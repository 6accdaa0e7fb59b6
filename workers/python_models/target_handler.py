"""Makes a handler of a target: a Python file's model, or a file that needs no code."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ts.context import Context
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.request_envelope.tensors import BadTensor

import ferry.modeling
from batching.errors import BadRequest
from batching.models.spec import URL_QUERY, ModelSpec
from batching.protocol import Claimed
from ferry.modeling import Model, Requests
from workers.python_models.encoding import encoded
from workers.python_models.hf_pipeline import Pipeline
from workers.python_models.python_model import Outcome, PythonModel
from workers.python_models.row import Row
from workers.python_models.targets import Target, find_model, load_module
from workers.python_models.tensor_model import TensorModel

log = logging.getLogger(__name__)

_UNITS = {MetricTypes.COUNTER: "count", MetricTypes.HISTOGRAM: ""}


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A model that is ready: `run(items, context)` answers with one outcome per claimed request."""

    run: Callable[[Sequence[Claimed], Context], list[Outcome]]
    interface: Mapping[str, Any]
    close: Callable[[], None]


def target_of(spec: ModelSpec, model_dir: Path) -> Target:
    """Returns what the version's manifest names.

    Raises:
        ValueError: it names nothing.
    """
    section = (spec.manifest or {}).get("model") or {}
    text = section.get("target") or section.get("serializedFile")
    if not isinstance(text, str) or not text:
        raise ValueError(f"{spec.handler} needs a target, or a serializedFile, in the manifest")
    return Target.of(text, model_dir)


def load_target(
    target: Target, spec: ModelSpec, context: Context, model_dir: Path, device: str
) -> LoadedTarget:
    """Imports, loads and warms up the model.

    Raises:
        Exception: whatever the model raises; TypeError, LookupError: it is none.
    """
    ferry.modeling.MEASURES[:] = [_measuring(context, spec.model_version)]
    own = _file_model(target)
    model = own or find_model(load_module(target, model_dir), target.name)
    python_model = PythonModel(model, *spec.key)
    model.load(device)
    python_model.warm_up(spec.batch_size)
    return LoadedTarget(_Batches(python_model, spec), python_model.interface, _closing(model))


def _file_model(target: Target) -> Model | None:
    """Returns the model of a target without code; None for a Python file."""
    if target.path is None:
        return Pipeline(target.name)
    return None if target.path.suffix == ".py" else TensorModel(target.path)


class _Batches:
    """Makes rows of claimed requests, and brings pieces of answers to their clients."""

    def __init__(self, model: PythonModel, spec: ModelSpec) -> None:
        self._model = model
        self._patience_s = spec.queue_timeout_s + spec.response_timeout_s

    def __call__(self, items: Sequence[Claimed], context: Context) -> list[Outcome]:
        if len(items) == 1 and (answer := self._special(items[0])) is not None:
            return [answer]
        rows = [_row(item) for item in items]
        requests = self._requests(items) if self._model.takes_requests else None

        def send(pieces: Mapping[int, tuple[bytes, str]]) -> None:
            for place, (_, kind) in pieces.items():
                context.set_response_content_type(place, kind)
            assert context.send_pieces is not None
            ids = {place: items[place].request_id for place in pieces}
            context.send_pieces({place: body for place, (body, _) in pieces.items()}, ids)

        return self._model.answer(rows, requests, send)

    def _special(self, item: Claimed) -> Outcome | None:
        headers = item.request.headers
        if headers.get("explain") == "True":
            return BadRequest("This model does not explain its predictions.")
        if headers.get("describe") == "True":
            return encoded(self._model.interface)
        return None

    def _requests(self, items: Sequence[Claimed]) -> Requests:
        now_s = time.monotonic()
        return Requests(
            [item.request_id for item in items],
            [item.request.headers for item in items],
            [dict(parse_qsl(item.request.headers.get(URL_QUERY, ""))) for item in items],
            [now_s + self._left_s(item) for item in items],
        )

    def _left_s(self, item: Claimed) -> float:
        asked_ms = item.request.headers.get("x-request-timeout-ms")
        limit_s = int(asked_ms) / 1000 if asked_ms else self._patience_s
        return limit_s - item.queue_us / 1e6


def _row(item: Claimed) -> Row | Exception:
    try:
        return Row.of(item.request)
    except (BadRequest, BadTensor) as error:
        return error


def _measuring(context: Context, model_version: str) -> ferry.modeling.Measure:
    dimensions = [Dimension("ModelVersion", model_version)]

    def measure(kind: str, name: str, value: float) -> None:
        metric_type = MetricTypes(kind)
        unit = _UNITS[metric_type]
        context.metrics.add_metric(name, value, unit, None, dimensions, metric_type)

    return measure


def _closing(model: Model) -> Callable[[], None]:
    def close() -> None:
        try:
            model.unload()
        except Exception:  # it may raise anything, and the worker ends in any case
            log.exception("unload failed")

    return close
