"""Envelopes: a request's JSON holds several instances, and its answer holds as many predictions.

The instances of a whole batch go to the handler in one list, and its outputs are dealt out again.
TorchServe's two KServe envelopes look at the first request only, and fail with more.
Source: TorchServe 0.12 docs/request_envelopes.md, as an interface.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ts.context import Context

from batching.models.spec import DEFAULT_VERSION
from workers.handling.tensors import BYTES, Tensor, check_rows, items_of, read_tensor, tensor_of

# This one only takes the handler's rows apart.
BODY = "body"
OPEN_INFERENCE_ENVELOPE = "kservev2"


class Envelope(Protocol):
    """Takes one request apart for a handler, and puts its answer together."""

    def open(self, row: Any) -> list[Any] | None:
        """Returns the instances of one request; None if it has none."""

    def close(
        self, outputs: list[Any], instances: Any, row: Any, context: Context, index: int
    ) -> Any:
        """Returns the answer to the request in row `index`, made of its instances' outputs."""


class BatchEnvelope(Protocol):
    """Takes the rows of a batch apart, then puts the answers to them together."""

    def open(self, rows: Sequence[Any]) -> Any:
        """Returns what the handler is given."""

    def close(self, outputs: Any, rows: Sequence[Any], context: Context) -> Any:
        """Returns the answers; the rows are those that were opened last."""


def envelope_of(name: str) -> BatchEnvelope | None:
    """Returns the envelope of this name; None where the handler is given the rows themselves."""
    if name == BODY:
        return _Bodies()
    envelope = ENVELOPES.get(name)
    return None if envelope is None else _Instances(envelope)


class _Bodies:
    """Gives the handler the rows' contents; its outputs are the answers."""

    def open(self, rows: Sequence[Any]) -> Any:
        return [_content(row) for row in rows]

    def close(self, outputs: Any, _rows: Sequence[Any], _context: Context) -> Any:
        return outputs


class _Instances:
    """Gives the handler the instances of all rows at once."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._opened: list[list[Any] | None] = []

    def open(self, rows: Sequence[Any]) -> Any:
        opened = self._opened = [self._envelope.open(row) for row in rows]
        return opened[0] if len(rows) == 1 else [one for each in opened for one in _required(each)]

    def close(self, outputs: Any, rows: Sequence[Any], context: Context) -> Any:
        if not isinstance(outputs, list) or not outputs:
            return outputs
        opened = self._opened
        shares = [outputs] if len(rows) == 1 else _dealt(outputs, opened)
        return [
            self._envelope.close(share, opened[index], rows[index], context, index)
            for index, share in enumerate(shares)
        ]


def _required(instances: list[Any] | None) -> list[Any]:
    if instances is None:
        # For a single request the handler is called with None, as in TorchServe.
        raise ValueError("a request without instances")
    return instances


def _dealt(outputs: list[Any], opened: Sequence[Any]) -> list[list[Any]]:
    lengths = [len(instances) for instances in opened]
    if len(outputs) != sum(lengths):
        # An output's request is unknown then: the runner calls again with one request at a time.
        raise ValueError("the handler's outputs cannot be dealt out to the requests")
    rest = iter(outputs)
    return [[next(rest) for _ in range(length)] for length in lengths]


class _Json:
    """Opens `{"instances": [...]}` and closes `{"predictions": [...]}` as text."""

    def open(self, row: Any) -> list[Any]:
        document = row if "instances" in row else _document(row)
        return [_unpacked(instance) for instance in document["instances"]]

    def close(self, outputs: list[Any], *_: Any) -> Any:
        return json.dumps({"predictions": outputs})


class _KServe:
    """Differs from `_Json` in that it names explanations and takes instances as they are."""

    def open(self, row: Any) -> list[Any] | None:
        instances: list[Any] | None = _document(row).get("instances")
        return instances

    def close(
        self, outputs: list[Any], _instances: Any, _row: Any, context: Context, index: int
    ) -> Any:
        is_explanation = context.get_request_header(index, "explain") == "True"
        return {"explanations" if is_explanation else "predictions": outputs}


class _KServeV2:
    """Speaks the Open Inference Protocol: instances and outputs are tensors."""

    def open(self, row: Any) -> list[Any]:
        return _opened_inputs(_document(row)["inputs"])

    def close(
        self, outputs: list[Any], instances: Any, row: Any, context: Context, index: int
    ) -> Any:
        given = _document(row).get("id")
        model = (context.manifest or {}).get("model", {})
        return {
            "id": given if isinstance(given, str) and given.strip() else context.request_ids[index],
            "model_name": model.get("modelName", context.model_name),
            "model_version": model.get("modelVersion", DEFAULT_VERSION),
            "outputs": [
                _closed_output(number, output, instances) for number, output in enumerate(outputs)
            ],
        }


ENVELOPES: dict[str, Envelope] = {
    "json": _Json(),
    "kserve": _KServe(),
    OPEN_INFERENCE_ENVELOPE: _KServeV2(),
}


def _content(row: Any) -> Any:
    # Not `or`: TorchServe's would call a tensor or an array ambiguous.
    data = row.get("data")
    return row.get("body") if data is None else data


def _document(row: Any) -> Any:
    content = _content(row)
    return json.loads(content) if isinstance(content, (bytes, bytearray, str)) else content


def _unpacked(instance: Any) -> Any:
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return base64.b64decode(instance["b64"])
    return {
        name: base64.b64decode(value["b64"])
        if isinstance(value, dict) and list(value) == ["b64"]
        else value
        for name, value in instance.items()
    }


def _opened_inputs(descriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tensors = [_numbers(description) for description in descriptions]
    check_rows(tensor.shape for tensor in tensors if tensor)
    return [
        {**description, "data": tensor.nested() if tensor else description["data"][0]}
        for description, tensor in zip(descriptions, tensors, strict=True)
    ]


def _numbers(description: dict[str, Any]) -> Tensor | None:
    if description["datatype"] == BYTES:
        return None
    return _alike(read_tensor(description["datatype"], description["shape"], description["data"]))


def _alike(tensor: Tensor) -> Tensor:
    """Makes all values floats if one is, as in an array."""
    if any(isinstance(value, float) for value in tensor.values):
        return replace(tensor, values=[float(value) for value in tensor.values])
    return tensor


def _closed_output(number: int, output: Any, instances: Any) -> dict[str, Any]:
    name = instances[number].get("name") if number < len(instances) else f"output-{number}"
    tensor = tensor_of(output)
    items = [] if tensor else items_of(output)
    tensor = tensor or tensor_of(items)
    if tensor is None:
        return {"name": name, "datatype": BYTES, "data": _alike_text(items), "shape": [len(items)]}
    return {
        "name": name,
        "datatype": tensor.datatype,
        "data": tensor.json_values(),
        "shape": [len(tensor.values)],
    }


def _alike_text(items: list[Any]) -> list[Any]:
    """Makes all items texts if one is and the others are numbers, as in an array."""
    is_mixed = any(isinstance(item, str) for item in items)
    if is_mixed and all(isinstance(item, (str, bool, int, float)) for item in items):
        return [str(item) for item in items]
    return items
