"""Runs a model in Python over batches: decodes each row, calls `predict`, encodes each output.

A row that cannot be decoded, or whose output is an exception, fails alone.
"""

import contextlib
import inspect
import io
import itertools
import logging
import math
import sys
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from ts.context import Context
from ts.metrics import Dimension, MetricTypes
from ts.torch_handler.open_inference import tensor_of

import ferry.modeling
from batching.errors import BadRequest, PredictionFailed
from batching.models.spec import URL_QUERY, ModelSpec
from batching.protocol import Claimed
from ferry.modeling import Answer, Model, Requests
from workers.python_models.decoding import (
    Decoder,
    FileModel,
    Row,
    decoder_of,
    described_output,
    row_type,
)
from workers.python_models.files_without_code import Pipeline, TensorModel
from workers.python_models.targets import Target, find_model, load_module

JSON_TYPE, TEXT_TYPE = "application/json", "text/plain; charset=utf-8"
_UNITS = {MetricTypes.COUNTER: "count", MetricTypes.HISTOGRAM: ""}
# Sends the next piece of answers, by the indexes of their rows: bodies with content types.
Send = Callable[[Mapping[int, tuple[bytes, str]]], None]
# Returns what came with the rows of these indexes.
RequestsOf = Callable[[Sequence[int]], Requests]
Outcome = Answer | Exception
log = logging.getLogger(__name__)


class PythonModel:
    """Runs one model.

    Raises:
        TypeError: the annotation of `predict` is no type of rows.
    """

    def __init__(self, model: Model, model_name: str, model_version: str) -> None:
        self.model = model
        self._name, self._version = model_name, model_version
        self._is_stream = inspect.isgeneratorfunction(model.predict)
        hints = typing.get_type_hints(model.predict)
        parameters = [*inspect.signature(model.predict).parameters]
        self._takes_requests = [hints.get(name) for name in parameters[1:2]] == [Requests]
        self._decoder: Decoder = decoder_of(row_type(hints.get(parameters[0])))
        self._returned = hints.get("return")

    def load(self, device: str, batch_size: int) -> None:
        """Loads the model, and runs its examples as a whole batch, and the first of them alone."""
        self.model.load(device)
        if isinstance(self.model, FileModel):
            self._decoder = self.model.decoder
        examples = list(self.model.warm_up)
        for size in (batch_size, 1) if examples else ():
            rows = list(itertools.islice(itertools.cycle(examples), size))
            self._run(rows, range(size), no_requests, lambda _: None)

    @property
    def interface(self) -> dict[str, Any]:
        it, model = self._decoder, self.model
        of_class = inspect.getdoc(model) if model.__doc__ != Model.__doc__ else ""
        interface: dict[str, Any] = {
            "summary": " ".join((of_class or "").partition("\n\n")[0].split()),
            "input": {"kind": it.kind, "type": it.type_name, "schema": it.schema},
            "output": described_output(self._returned),
            "inputs": [],
            "outputs": [],
        }
        for example in model.warm_up[:1]:
            with contextlib.suppress(PredictionFailed, ValueError, msgspec.DecodeError):
                is_text = isinstance(example, str)
                value = example if is_text else msgspec.json.decode(encode(example)[0])
                interface["example"] = value
        return interface | (model.interface if isinstance(model, FileModel) else {})

    def answer(self, rows: Sequence[Row], requests_of: RequestsOf, send: Send) -> list[Outcome]:
        """Returns an answer or an error for each row; `send` takes pieces of streamed answers."""
        outcomes: list[Any] = [self._decoder.decode(row) for row in rows]
        indexes = [i for i, value in enumerate(outcomes) if not isinstance(value, Exception)]
        if indexes:
            values = [outcomes[index] for index in indexes]
            outputs = self._run(values, indexes, requests_of, send)
            for index, output in zip(indexes, outputs, strict=True):
                outcomes[index] = self._encoded(rows[index], output)
        return outcomes

    def _run(
        self, values: list[Any], indexes: Sequence[int], requests_of: RequestsOf, send: Send
    ) -> Sequence[Any]:
        size = len(values)  # the list is the model's own
        arguments = (values, requests_of(indexes)) if self._takes_requests else (values,)
        outputs = self.model.predict(*arguments)
        if self._is_stream:
            with contextlib.closing(outputs):
                return _stream(outputs, indexes, send)
        return _rows_of(outputs, size)

    def _encoded(self, row: Row, output: Any) -> Outcome:
        if isinstance(output, Exception):
            return output
        try:
            if row.inference is None or isinstance(output, Answer):
                return encoded(output)
            inputs = row.inference.inputs.values()
            if all(tensor.shape and tensor.shape[0] == 1 for tensor in inputs):
                output = _with_batch_axis(output)
            # A file's only output has its name in the file's metadata.
            named = self.model.interface["outputs"] if isinstance(self.model, FileModel) else []
            if len(named) == 1 and len(getattr(output, "shape", [])) > 0:
                output = {named[0]["name"]: output}
            body, headers = row.inference.answer(output, self._name, self._version)
            return Answer(body, headers=headers)
        except PredictionFailed as error:
            return error
        except (TypeError, ValueError) as error:
            return PredictionFailed(f"predict returned what no tensor can be made of: {error}.")


class LoadedTarget(PythonModel):
    """Imports, loads and warms up the model of an archive that names a target.

    Raises:
        TypeError, LookupError: the target is no model.
        Exception: whatever the model raises.
    """

    def __init__(self, spec: ModelSpec, context: Context, model_dir: Path, device: str) -> None:
        dimensions = [Dimension("ModelVersion", spec.model_version)]

        def measure(kind: str, name: str, value: float) -> None:
            metric_type = MetricTypes(kind)
            context.own_metrics.add_metric(
                name, value, _UNITS[metric_type], None, dimensions, metric_type
            )

        ferry.modeling.MEASURES[:] = [measure]
        target = target_of(spec, model_dir)
        if target.path is None:
            model: Model = Pipeline(target.name)
        elif target.path.suffix != ".py":
            model = TensorModel(target.path)
        else:
            model = find_model(load_module(target.path, model_dir), target.name)
        super().__init__(model, *spec.key)
        self.load(device, spec.batch_size)
        self._patience_s = spec.queue_timeout_s + spec.response_timeout_s

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

        def requests_of(indexes: Sequence[int]) -> Requests:
            now_s = time.monotonic()
            headers, queries, deadlines_s = [], [], []
            for item in (items[index] for index in indexes):
                sent = {name.lower(): value for name, value in item.request.headers.items()}
                asked_ms = sent.get("x-request-timeout-ms")
                patience_s = int(asked_ms) / 1000 if asked_ms else self._patience_s
                headers.append(sent)
                queries.append(dict(parse_qsl(item.request.headers.get(URL_QUERY, ""))))
                deadlines_s.append(now_s + patience_s - item.queue_us / 1e6)
            return Requests([items[i].request_id for i in indexes], headers, queries, deadlines_s)

        rows = [Row({part.name: part for part in item.request.parts}) for item in items]
        return self.answer(rows, requests_of, send)

    def close(self) -> None:
        try:
            self.model.unload()
        except Exception:  # it may raise anything, and the worker ends in any case
            log.exception("unload failed")


def target_of(spec: ModelSpec, model_dir: Path) -> Target:
    section = (spec.manifest or {}).get("model") or {}
    target = section.get("target") or section.get("serializedFile")
    if not isinstance(target, str) or not target:
        raise ValueError(f"{spec.handler} needs a target, or a serializedFile, in the manifest")
    return Target.of(target, model_dir)


def no_requests(indexes: Sequence[int]) -> Requests:
    size = len(indexes)
    return Requests([""] * size, [{}] * size, [{}] * size, [math.inf] * size)


def _stream(steps: Iterable[Any], indexes: Sequence[int], send: Send) -> list[Any]:
    """Sends the pieces that each step yields; returns the ends of the answers."""
    ends: dict[int, Any] = dict.fromkeys(indexes, Answer())
    for step in steps:
        pieces = {}
        for index, piece in zip(indexes, _rows_of(step, len(indexes)), strict=True):
            if isinstance(ends[index], Exception):
                continue
            if isinstance(piece, Exception):
                ends[index] = piece
            elif piece is not None:
                pieces[index] = encode(piece)
        if pieces:
            send(pieces)
    return list(ends.values())


def _with_batch_axis(output: Any) -> Any:
    if isinstance(output, dict):
        return {name: _with_batch_axis(value) for name, value in output.items()}
    if hasattr(output, "dtype") and hasattr(output, "reshape"):
        return output.reshape(1, *output.shape)
    return [output] if tensor_of([output]) is not None else output


# --- answers


def encode(value: Any) -> tuple[bytes, str]:
    """Returns body and content type; NaN and infinity become null in JSON."""
    if isinstance(value, str):
        return value.encode(errors="replace"), TEXT_TYPE
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), "application/octet-stream"
    pillow = sys.modules.get("PIL.Image")
    try:
        if pillow is not None and isinstance(value, pillow.Image):
            buffer = io.BytesIO()
            value.save(buffer, "PNG")
            return buffer.getvalue(), "image/png"
        return _ENCODER.encode(value), JSON_TYPE
    except (TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise PredictionFailed(
            f"predict returned what no answer can be made of: {error}."
        ) from error


def encoded(output: Any) -> Answer:
    answer = output if isinstance(output, Answer) else Answer(output)
    body, kind = encode(answer.body)
    headers = {"content-type": answer.content_type or kind, **answer.headers}
    return Answer(body, headers=headers, status=answer.status)


def _rows_of(outputs: Any, size: int) -> list[Any]:
    """Returns the list of a batch's outputs; splits an array or tensor along its first axis."""
    if hasattr(outputs, "detach"):
        tensor = outputs.detach().cpu()
        is_known = str(tensor.dtype) != "torch.bfloat16"  # numpy has no such type
        outputs = (tensor if is_known else tensor.float()).numpy()
    if not isinstance(outputs, list | tuple) and not getattr(outputs, "shape", ()):
        raise PredictionFailed(
            f"predict returned {type(outputs).__name__}: a list, array or tensor is wanted, with "
            "one output for each row."
        )
    if len(outputs) != size:
        raise PredictionFailed(
            f"predict returned {len(outputs)} outputs for {size} rows: one for each is wanted."
        )
    return list(outputs)


def _as_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_as_json)
