"""Runs a model in Python over batches: decodes each row, calls `predict`, encodes each output.

A row that cannot be decoded, or whose output is an exception, fails alone.
"""

import contextlib
import inspect
import io
import itertools
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from ts.torch_handler.request_envelope.tensors import tensor_of

from batching.errors import PredictionFailed
from ferry.modeling import Answer, Model, Requests
from workers.python_models.decoding import Decoder, Row, decoder_of, described_output, row_type

JSON_TYPE, TEXT_TYPE = "application/json", "text/plain; charset=utf-8"
_BYTES_TYPE = "application/octet-stream"
# Sends the next piece of answers, by the indexes of their rows: bodies with content types.
Send = Callable[[Mapping[int, tuple[bytes, str]]], None]
# Returns what came with the rows in these indexes.
Told = Callable[[Sequence[int]], Requests]
Outcome = Answer | Exception


class FileModel(Model):
    """A model of a file without code: `load` sets how it reads rows, and what it says of itself."""

    decoder: Decoder
    interface: dict[str, Any]


class PythonModel:
    """One model.

    Raises:
        TypeError: `predict` cannot be called with a batch, or its annotation is no type of rows.
    """

    def __init__(self, model: Model, model_name: str, model_version: str) -> None:
        self.model = model
        self._name, self._version = model_name, model_version
        parameters, hints = _signature(model.predict)
        self._takes_requests = len(parameters) > 1
        self._is_stream = inspect.isgeneratorfunction(model.predict)
        self._decoder = decoder_of(row_type(hints.get(parameters[0])))
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
        of_class = inspect.getdoc(self.model) if self.model.__doc__ != Model.__doc__ else ""
        interface: dict[str, Any] = {
            "summary": " ".join((of_class or "").partition("\n\n")[0].split()),
            "input": self._decoder.described(),
            "output": described_output(self._returned),
            "inputs": [],
            "outputs": [],
        }
        for example in self.model.warm_up[:1]:
            with contextlib.suppress(PredictionFailed, ValueError, msgspec.DecodeError):
                is_text = isinstance(example, str)
                value = example if is_text else msgspec.json.decode(encode(example)[0])
                interface["example"] = value
        return interface | (self.model.interface if isinstance(self.model, FileModel) else {})

    def answer(self, rows: Sequence[Row], told: Told, send: Send) -> list[Outcome]:
        """Returns an answer or an error for each row; `send` takes pieces of streamed answers."""
        outcomes: list[Any] = [self._decoder.decode(row) for row in rows]
        indexes = [i for i, value in enumerate(outcomes) if not isinstance(value, Exception)]
        if indexes:
            values = (
                outcomes if len(indexes) == len(rows) else [outcomes[index] for index in indexes]
            )
            outputs = self._run(list(values), indexes, told, send)
            for index, output in zip(indexes, outputs, strict=True):
                outcomes[index] = self._encoded(rows[index], output)
        return outcomes

    def _run(
        self, values: list[Any], indexes: Sequence[int], told: Told, send: Send
    ) -> Sequence[Any]:
        arguments = (values, told(indexes)) if self._takes_requests else (values,)
        outputs = self.model.predict(*arguments)
        if self._is_stream:
            with contextlib.closing(outputs):
                return _stream(outputs, indexes, send)
        return rows_of(outputs, len(values))

    def _encoded(self, row: Row, output: Any) -> Outcome:
        if isinstance(output, Exception):
            return output
        try:
            if row.inference is None or isinstance(output, Answer):
                return encoded(output)
            inputs = row.inference.inputs.values()
            has_batch_axis = all(tensor.shape and tensor.shape[0] == 1 for tensor in inputs)
            value = _with_batch_axis(output) if has_batch_axis else output
            value = self._named(value)
            body, headers = row.inference.answer(value, self._name, self._version)
            return Answer(body, headers=headers)
        except PredictionFailed as error:
            return error
        except (TypeError, ValueError) as error:
            return PredictionFailed(f"predict returned what no tensor can be made of: {error}.")

    def _named(self, output: Any) -> Any:
        """Returns a file's only output under the name that its metadata has."""
        outputs = self.model.interface["outputs"] if isinstance(self.model, FileModel) else []
        has_axis = len(getattr(output, "shape", [])) > 0
        return {outputs[0]["name"]: output} if len(outputs) == 1 and has_axis else output


def no_requests(indexes: Sequence[int]) -> Requests:
    size = len(indexes)
    return Requests([""] * size, [{}] * size, [{}] * size, [math.inf] * size)


def _signature(predict: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the names of the parameters, and the annotations."""
    parameters = list(inspect.signature(predict).parameters.values())
    needed = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    try:
        hints = typing.get_type_hints(predict)
    except NameError as error:
        raise TypeError(f"the annotation of predict cannot be read: {error}") from error
    others = [each.name for each in parameters[1:] if hints.get(each.name) is Requests]
    if not parameters or needed[1:] != [name for name in others if name in needed]:
        raise TypeError(
            f"predict takes one batch, not ({', '.join(needed)}): write predict(batch), or "
            "predict(batch, requests: ferry.Requests)"
        )
    return [parameters[0].name, *others[:1]], hints


def _stream(steps: Iterable[Any], indexes: Sequence[int], send: Send) -> list[Any]:
    """Sends what each step yields; returns the ends of the answers."""
    ends: dict[int, Any] = dict.fromkeys(indexes, Answer())
    for step in steps:
        pieces = {}
        for index, piece in zip(indexes, rows_of(step, len(indexes)), strict=True):
            if piece is None or isinstance(ends[index], Exception):
                continue
            if isinstance(piece, Exception):
                ends[index] = piece
            else:
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
        return bytes(value), _BYTES_TYPE
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
    """Returns the whole answer to a row."""
    if not isinstance(output, Answer):
        body, kind = encode(output)
        return Answer(body, headers={"content-type": kind})
    body, kind = encode(output.body)
    headers = {"content-type": output.content_type or kind, **output.headers}
    return Answer(body, headers=headers, status=output.status)


def rows_of(outputs: Any, size: int) -> list[Any]:
    """Returns the outputs of a batch one by one; of an array or tensor, along its first axis."""
    if hasattr(outputs, "detach"):
        tensor = outputs.detach().cpu()
        is_known = str(tensor.dtype) != "torch.bfloat16"  # which numpy is not
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


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
