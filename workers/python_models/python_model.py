"""Runs a model in Python over batches: decodes each row, calls `predict`, encodes each output.

A row that cannot be decoded, or whose output is an exception, fails alone.
"""

import contextlib
import inspect
import itertools
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from ts.torch_handler.request_envelope.tensors import BadTensor, tensor_of
from ts.utils.util import PredictionException

from batching.errors import BadRequest, PredictionFailed, ServeError
from ferry.modeling import Answer, BadInput, Model, Requests
from workers.python_models.decoding import Decoder, decoder_of, described, row_type
from workers.python_models.encoding import encode, encoded, rows_of
from workers.python_models.row import Row

# Sends the next piece of answers, by the places of their rows: bodies with content types.
Send = Callable[[Mapping[int, tuple[bytes, str]]], None]
Outcome = Answer | Exception

_ITS_OWN = (ServeError, PredictionException, BadInput, BadTensor)


class PythonModel:
    """One model, after its `load`.

    Raises:
        TypeError: `predict` cannot be called with a batch, or its annotation is no type of rows.
    """

    def __init__(self, model: Model, model_name: str, model_version: str) -> None:
        self.model = model
        self._name, self._version = model_name, model_version
        parameters, hints = _signature(model.predict)
        self._takes_requests = len(parameters) > 1
        self._is_stream = inspect.isgeneratorfunction(model.predict)
        self._decoder = self._decoder_of(hints.get(parameters[0]))
        self._returned = hints.get("return")

    @property
    def interface(self) -> dict[str, Any]:
        """Returns what the model takes and gives, as JSON, for people and for API documents."""
        of_class = inspect.getdoc(self.model) if self.model.__doc__ != Model.__doc__ else ""
        takes, gives = self._decoder, described(self._returned)
        interface: dict[str, Any] = {
            "summary": " ".join((of_class or "").partition("\n\n")[0].split()),
            "input": {"kind": takes.kind, "type": takes.type_name, "schema": takes.schema},
            "output": {"type": gives[0], "schema": gives[1]},
            "inputs": [],
            "outputs": [],
        }
        for example in self.model.warm_up[:1]:
            with contextlib.suppress(TypeError, ValueError):
                is_text = isinstance(example, str)
                value = example if is_text else msgspec.json.decode(encode(example)[0])
                interface["example"] = value
        own = getattr(self.model, "interface", None)
        return interface | (own() if own is not None else {})

    def warm_up(self, batch_size: int) -> None:
        """Runs the model's examples as a whole batch, and the first of them alone."""
        examples = list(self.model.warm_up)
        for size in (batch_size, 1) if examples else ():
            rows = list(itertools.islice(itertools.cycle(examples), size))
            nobody = Requests(["warm-up"] * size, [{}] * size, [{}] * size, [math.inf] * size)
            self._run(rows, nobody, lambda _: None)

    def answer(
        self, rows: Sequence[Row | Exception], requests: Requests | None, send: Send
    ) -> list[Outcome]:
        """Returns an answer or an error for each row.

        Args:
            rows: requests, or why one is none.
            requests: what came with the rows; may be None where `takes_requests` is false.
            send: takes the pieces of a streamed answer.

        Raises:
            Exception: whatever `predict` raises, for the whole batch.
        """
        decoded = [self._decode(row) for row in rows]
        places = [place for place, (_, error) in enumerate(decoded) if error is None]
        outcomes: list[Any] = [error for _, error in decoded]
        if places:
            values = [decoded[place][0] for place in places]
            chosen = None if requests is None else _chosen(requests, places)
            outputs = self._run(values, chosen, lambda pieces: send(_placed(pieces, places)))
            for place, output in zip(places, outputs, strict=True):
                outcomes[place] = self._encoded(rows[place], output)
        return outcomes

    @property
    def takes_requests(self) -> bool:
        return self._takes_requests

    def _decoder_of(self, annotation: Any) -> Decoder:
        read_row = getattr(self.model, "read_row", None)
        if read_row is not None:
            return Decoder("tensor", "", read_row)
        return decoder_of(row_type(annotation))

    def _decode(self, row: Row | Exception) -> tuple[Any, Exception | None]:
        if isinstance(row, Exception):
            return None, row
        try:
            return self._decoder.decode(row), None
        except BadInput as error:
            return None, BadRequest(str(error))
        except _ITS_OWN as error:
            return None, error

    def _run(self, values: list[Any], requests: Requests | None, send: Send) -> list[Any]:
        arguments = (values, requests) if self._takes_requests else (values,)
        outputs = self.model.predict(*arguments)
        if self._is_stream:
            with contextlib.closing(outputs):
                return _stream(outputs, len(values), send)
        return _counted(rows_of(outputs), len(values))

    def _encoded(self, row: Row | Exception, output: Any) -> Outcome:
        inference = getattr(row, "inference", None)
        if inference is None or isinstance(output, Exception | Answer):
            return encoded(output)
        try:
            value = _with_batch_axis(output) if _has_batch_axis(row) else output
            value = self._named(value)
            body, headers = inference.answer(value, self._name, self._version)
        except (TypeError, ValueError) as error:
            return PredictionFailed(f"predict returned what no tensor can be made of: {error}.")
        return Answer(body, headers=headers)

    def _named(self, output: Any) -> Any:
        """Returns a file's only output under the name that its metadata has."""
        names: list[str] = list(getattr(self.model, "output_names", []))
        has_axis = len(getattr(output, "shape", [])) > 0
        return {names[0]: output} if len(names) == 1 and has_axis else output


def _signature(predict: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the names of the parameters, and the annotations.

    Raises:
        TypeError: there are more than the batch and `ferry.Requests`.
    """
    parameters = list(inspect.signature(predict).parameters.values())
    names = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    try:
        hints = typing.get_type_hints(predict)
    except NameError as error:
        raise TypeError(f"the annotation of predict cannot be read: {error}") from error
    others = [one.name for one in parameters[1:] if hints.get(one.name) is Requests]
    if not parameters or names[1:] != [name for name in others if name in names]:
        raise TypeError(
            f"predict takes one batch, not ({', '.join(names)}): write predict(batch), or "
            "predict(batch, requests: ferry.Requests)"
        )
    return [parameters[0].name, *others[:1]], hints


def _stream(steps: Iterable[Any], size: int, send: Send) -> list[Any]:
    """Sends what each step yields; returns the ends of the answers."""
    ends: list[Any] = [Answer()] * size
    for step in steps:
        pieces = {}
        for place, piece in enumerate(_counted(rows_of(step), size)):
            if piece is None or isinstance(ends[place], Exception):
                continue
            if isinstance(piece, Exception):
                ends[place] = piece
            else:
                pieces[place] = encode(piece)
        if pieces:
            send(pieces)
    return ends


def _counted(outputs: list[Any], size: int) -> list[Any]:
    if len(outputs) != size:
        raise PredictionFailed(
            f"predict returned {len(outputs)} outputs for {size} rows: one for each is wanted."
        )
    return outputs


def _placed(pieces: Mapping[int, Any], places: Sequence[int]) -> dict[int, Any]:
    return {places[number]: piece for number, piece in pieces.items()}


def _chosen(requests: Requests, places: Sequence[int]) -> Requests:
    columns = (requests.ids, requests.headers, requests.queries, requests.deadlines_s)
    return Requests(*([column[place] for place in places] for column in columns))  # type: ignore[arg-type]


def _has_batch_axis(row: Any) -> bool:
    return all(one.shape and one.shape[0] == 1 for one in row.inference.inputs.values())


def _with_batch_axis(output: Any) -> Any:
    if isinstance(output, dict):
        return {name: _with_batch_axis(value) for name, value in output.items()}
    if hasattr(output, "dtype") and hasattr(output, "reshape"):
        return output.reshape(1, *output.shape)
    return [output] if tensor_of([output]) is not None else output
