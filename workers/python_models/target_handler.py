"""Makes a handler of a target: a Python file's model, or a file that needs no code."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from ts.context import Context
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

import ferry.modeling
from batching.errors import BadRequest
from batching.models.spec import URL_QUERY, ModelSpec
from batching.protocol import Claimed
from ferry.modeling import Model, Requests
from workers.python_models.decoding import Row
from workers.python_models.hf_pipeline import Pipeline
from workers.python_models.python_model import Outcome, PythonModel, encoded
from workers.python_models.targets import Target, find_model, load_module
from workers.python_models.tensor_model import TensorModel

log = logging.getLogger(__name__)

_UNITS = {MetricTypes.COUNTER: "count", MetricTypes.HISTOGRAM: ""}


def target_of(spec: ModelSpec, model_dir: Path) -> Target:
    """Returns what the version's manifest names."""
    section = (spec.manifest or {}).get("model") or {}
    target = section.get("target") or section.get("serializedFile")
    if not isinstance(target, str) or not target:
        raise ValueError(f"{spec.handler} needs a target, or a serializedFile, in the manifest")
    return Target.of(target, model_dir)


class LoadedTarget:
    """A model that is imported, loaded and warmed up.

    Raises:
        Exception: whatever the model raises; TypeError, LookupError: it is none.
    """

    def __init__(
        self, target: Target, spec: ModelSpec, context: Context, model_dir: Path, device: str
    ) -> None:
        ferry.modeling.MEASURES[:] = [_measuring(context, spec.model_version)]
        self._model = PythonModel(_model_of(target, model_dir), *spec.key)
        self._model.load(device, spec.batch_size)
        self._patience_s = spec.queue_timeout_s + spec.response_timeout_s
        self.interface = self._model.interface

    def run(self, items: Sequence[Claimed], context: Context) -> list[Outcome]:
        headers = items[0].request.headers  # such requests come alone
        if headers.get("explain") == "True":
            return [BadRequest("This model does not explain its predictions.")]
        if headers.get("describe") == "True":
            return [encoded(self.interface)]

        def send(pieces: Mapping[int, tuple[bytes, str]]) -> None:
            for index, (_, kind) in pieces.items():
                context.set_response_content_type(index, kind)
            assert context.send_pieces is not None
            ids = {index: items[index].request_id for index in pieces}
            context.send_pieces({index: body for index, (body, _) in pieces.items()}, ids)

        rows = [Row({part.name: part for part in item.request.parts}) for item in items]
        return self._model.answer(
            rows, lambda indexes: self._told([items[index] for index in indexes]), send
        )

    def close(self) -> None:
        try:
            self._model.model.unload()
        except Exception:  # it may raise anything, and the worker ends in any case
            log.exception("unload failed")

    def _told(self, items: Sequence[Claimed]) -> Requests:
        now_s = time.monotonic()
        told = [item.request.headers for item in items]
        headers = [{name.lower(): value for name, value in sent.items()} for sent in told]
        return Requests(
            [item.request_id for item in items],
            headers,
            [dict(parse_qsl(sent.get(URL_QUERY, ""))) for sent in told],
            [now_s + self._left_s(*pair) for pair in zip(items, headers, strict=True)],
        )

    def _left_s(self, item: Claimed, headers: Mapping[str, str]) -> float:
        asked_ms = headers.get("x-request-timeout-ms")
        limit_s = int(asked_ms) / 1000 if asked_ms else self._patience_s
        return limit_s - item.queue_us / 1e6


def _model_of(target: Target, model_dir: Path) -> Model:
    if target.path is None:
        return Pipeline(target.name)
    if target.path.suffix != ".py":
        return TensorModel(target.path)
    return find_model(load_module(target, model_dir), target.name)


def _measuring(context: Context, model_version: str) -> ferry.modeling.Measure:
    dimensions = [Dimension("ModelVersion", model_version)]

    def measure(kind: str, name: str, value: float) -> None:
        metric_type = MetricTypes(kind)
        unit = _UNITS[metric_type]
        context.own_metrics.add_metric(name, value, unit, None, dimensions, metric_type)

    return measure
