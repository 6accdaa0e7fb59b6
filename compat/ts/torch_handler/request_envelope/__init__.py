"""Has the envelopes that `service_envelope` names, and the base that handlers extend.

Source: TorchServe 0.12 docs/request_envelopes.md, as an interface.
"""

import base64
import json as json_codec  # a module of TorchServe's, under this name, becomes an attribute here
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ts.torch_handler.open_inference import BYTES, Tensor, check_rows, read_tensor, tensor_of


class BaseEnvelope(ABC):
    """Unpacks requests before a handler's entry, `handle_fn`, and packs its results afterwards."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None  # of the batch

    def handle(self, data: Any, context: Any) -> Any:
        """Returns the answers to the rows of a batch; an empty result stays unchanged."""
        self.context = context
        given = self.parse_input(data) if data else data
        results = self._handle_fn(given, context)
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Returns the handler's input for these rows."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Returns the answers to the rows, from the handler's results."""


class BodyEnvelope(BaseEnvelope):
    """Gives handlers the rows' contents without their keys."""

    def parse_input(self, data: Any) -> Any:
        return [content_of(row) for row in data]

    def format_output(self, data: Any) -> Any:
        return data


class InstancesEnvelope(BaseEnvelope):
    """Runs the instances of all requests together, and splits the outputs by request.

    TorchServe's two KServe envelopes look at the first request only, and fail with more.
    """

    _rows: Sequence[Any] = ()
    _opened: Sequence[Any] = ()  # each row's instances

    def parse_input(self, data: Any) -> Any:
        self._rows, self._opened = data, [self.open_row(row) for row in data]
        if len(data) == 1:
            return self._opened[0]
        if any(instances is None for instances in self._opened):
            # For a single request the handler is called with None, as in TorchServe.
            raise ValueError("a request without instances")
        return [instance for instances in self._opened for instance in instances]

    def format_output(self, data: Any) -> Any:
        if len(self._opened) <= 1:
            return [self.close_row(data, 0)]
        lengths = [len(instances) for instances in self._opened]
        if not isinstance(data, list) or len(data) != sum(lengths):
            # An output's request is unknown then: the worker calls again with a request at a time.
            raise ValueError("the handler's outputs cannot be dealt out to the requests")
        outputs = iter(data)
        return [
            self.close_row([next(outputs) for _ in range(length)], index)
            for index, length in enumerate(lengths)
        ]

    @abstractmethod
    def open_row(self, row: Any) -> Any:
        """Returns the instances of one request; None if it has none."""

    @abstractmethod
    def close_row(self, outputs: Any, index: int) -> Any:
        """Returns the answer to request `index`, from the outputs of its instances."""


class JSONEnvelope(InstancesEnvelope):
    """Takes `{"instances": [...]}` and answers `{"predictions": [...]}` as TensorFlow Serving."""

    def open_row(self, row: Any) -> Any:
        return self._from_json(row)

    def close_row(self, outputs: Any, index: int) -> Any:
        return self._to_json(outputs)

    # Envelopes that extend this one override these two.

    def _from_json(self, data: Any) -> list[Any]:
        document = data if "instances" in data else document_of(data)
        return [_unpacked(instance) for instance in document["instances"]]

    def _to_json(self, output: Any) -> Any:
        return json_codec.dumps({"predictions": output})


class KServeEnvelope(InstancesEnvelope):
    """Speaks KServe's first protocol: instances unchanged; predictions or explanations."""

    def open_row(self, row: Any) -> Any:
        return document_of(row).get("instances")

    def close_row(self, outputs: Any, index: int) -> Any:
        is_explanation = self.context.get_request_header(index, "explain") == "True"
        return {"explanations" if is_explanation else "predictions": outputs}


class KServev2Envelope(InstancesEnvelope):
    """Speaks the Open Inference Protocol: inputs nested by their shapes, outputs flattened."""

    def open_row(self, row: Any) -> Any:
        descriptions = document_of(row)["inputs"]
        tensors = [
            None if given["datatype"] == BYTES else _numbers(given) for given in descriptions
        ]
        check_rows(tensor.shape for tensor in tensors if tensor)
        return [
            {**given, "data": tensor.nested() if tensor else given["data"][0]}
            for given, tensor in zip(descriptions, tensors, strict=True)
        ]

    def close_row(self, outputs: Any, index: int) -> Any:
        given = document_of(self._rows[index]).get("id")
        context = self.context
        model = (context.manifest or {}).get("model", {})
        return {
            "id": given if isinstance(given, str) and given.strip() else context.request_ids[index],
            "model_name": model.get("modelName", context.model_name),
            "model_version": model.get("modelVersion", "1.0"),
            "outputs": [
                _closed_output(number, output, self._opened[index])
                for number, output in enumerate(outputs)
            ],
        }


# Value of `service_envelope`, which is the name of the module in TorchServe, -> envelope.
ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KServeEnvelope,
    "kservev2": KServev2Envelope,
}


def content_of(row: Any) -> Any:
    # Not `or`: TorchServe's would call a tensor or an array ambiguous.
    data = row.get("data")
    return row.get("body") if data is None else data


def document_of(row: Any) -> Any:
    """Returns the JSON of a row, which may have come as bytes or text of any content type."""
    content = content_of(row)
    return json_codec.loads(content) if isinstance(content, (bytes, bytearray, str)) else content


def _unpacked(instance: Any) -> Any:
    """Decodes base64 where an instance, or one of its values, is `{"b64": ...}`."""
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return base64.b64decode(instance["b64"])
    return {
        name: _unpacked(value) if isinstance(value, dict) and list(value) == ["b64"] else value
        for name, value in instance.items()
    }


def _numbers(description: dict[str, Any]) -> Tensor:
    tensor = read_tensor(description["datatype"], description["shape"], description["data"])
    if any(isinstance(value, float) for value in tensor.values):  # then all are, as in an array
        return replace(tensor, values=[float(value) for value in tensor.values])
    return tensor


def _closed_output(number: int, output: Any, instances: Any) -> dict[str, Any]:
    name = instances[number].get("name") if number < len(instances) else f"output-{number}"
    if tensor := tensor_of(output):
        datatype, values = tensor.datatype, tensor.json_values()
    else:
        datatype, values = BYTES, output if isinstance(output, list) else [output]
    return {"name": name, "datatype": datatype, "data": values, "shape": [len(values)]}
