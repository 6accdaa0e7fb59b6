"""Requests and answers of the Open Inference Protocol, for handlers that know nothing of it.

Source: KServe Open Inference Protocol v2 "Inference", and Triton's binary tensor data extension,
which Triton's clients use unless told otherwise.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ts.torch_handler.request_envelope.tensors import (
    BYTES,
    Tensor,
    check_rows,
    cut_off,
    read_tensor,
    tensor_of,
    text_tensor,
)

from batching.errors import BadRequest

HEADER_LENGTH = "Inference-Header-Content-Length"
OUTPUT_NAME = "output"

_BINARY_SIZE = "binary_data_size"


@dataclass(frozen=True, slots=True)
class Inference:
    document: Mapping[str, Any]
    inputs: Mapping[str, Tensor]

    @classmethod
    def read(cls, content: bytes | bytearray, json_bytes: int) -> "Inference":
        """Returns the request in a body whose first `json_bytes` bytes are JSON."""
        try:
            document = json.loads(content[:json_bytes])
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"The inference request is not JSON: {error}.") from error
        inputs = document.get("inputs") if isinstance(document, dict) else None
        if not isinstance(inputs, list) or not inputs:
            raise BadRequest("The inference request has no inputs.")
        tensors = list(_tensors(inputs, bytes(memoryview(content)[json_bytes:])))
        check_rows(tensor.shape for _, tensor in tensors)
        return cls(document, dict(tensors))

    def row(self) -> dict[str, Any]:
        """Returns the handler's row: a value per input under its name; a single one as `body`, too.

        One element of BYTES is that element, as a file's content would be.
        """
        row = {name: _plain(tensor) for name, tensor in self.inputs.items()}
        if len(row) == 1:
            row["body"] = next(iter(row.values()))
        return row

    def with_data(self) -> dict[str, Any]:
        inputs = [
            {
                "name": name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "data": tensor.json_values(),
            }
            for name, tensor in self.inputs.items()
        ]
        return {**self.document, "inputs": inputs}

    def answer(
        self, output: Any, model_name: str, model_version: str
    ) -> tuple[bytes, dict[str, str]]:
        """Returns body and headers for a handler's output; one that is an answer stays as it is."""
        if isinstance(output, dict) and isinstance(output.get("outputs"), list):
            return json.dumps(output).encode(), {"content-type": "application/json"}
        document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
        if isinstance(self.document.get("id"), str):
            document["id"] = self.document["id"]
        written = [self._write(name, tensor) for name, tensor in self._named(output).items()]
        document["outputs"] = [description for description, _ in written]
        head = json.dumps(document).encode()
        binary = b"".join(content for _, content in written)
        if not binary:
            return head, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        return head + binary, headers

    def _named(self, output: Any) -> dict[str, Tensor]:
        """Returns the outputs by name; of several, only those that the request asks for."""
        asked = [wish["name"] for wish in _wishes(self.document)]
        if isinstance(output, dict) and output:
            tensors = {str(name): tensor_of(value) for name, value in output.items()}
            shaped = {name: t for name, t in tensors.items() if t is not None and t.shape}
            if len(shaped) == len(output):
                return {name: t for name, t in shaped.items() if not asked or name in asked}
        name = asked[0] if len(asked) == 1 else OUTPUT_NAME
        return {name: tensor_of(output) or text_tensor(output)}

    def _write(self, name: str, tensor: Tensor) -> tuple[dict[str, Any], bytes]:
        description: dict[str, Any] = {
            "name": name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if not self._wants_binary(name):
            return {**description, "data": tensor.json_values()}, b""
        content = tensor.binary()
        return {**description, "parameters": {_BINARY_SIZE: len(content)}}, content

    def _wants_binary(self, name: str) -> bool:
        for wish in _wishes(self.document):
            if wish["name"] == name:
                return _parameters(wish).get("binary_data") is True
        return _parameters(self.document).get("binary_data_output") is True


def _tensors(inputs: list[Any], binary: bytes) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for description in inputs:
        if not isinstance(description, dict) or not isinstance(description.get("name"), str):
            raise BadRequest("An input of the inference request has no name.")
        size = _parameters(description).get(_BINARY_SIZE)
        if size is None:
            data = description.get("data")
        elif type(size) is not int or not 0 <= size <= len(binary) - start:
            raise cut_off()
        else:
            data = binary[start : start + size]
            start += size
        yield (
            description["name"],
            read_tensor(description.get("datatype"), description.get("shape"), data),
        )


def _plain(tensor: Tensor) -> Any:
    if tensor.datatype != BYTES:
        return tensor.nested()
    values = [bytearray(value) if isinstance(value, bytes) else value for value in tensor.values]
    return values[0] if len(values) == 1 else Tensor(BYTES, tensor.shape, values).nested()


def _wishes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    wishes = document.get("outputs")
    if not isinstance(wishes, list):
        return []
    return [w for w in wishes if isinstance(w, dict) and isinstance(w.get("name"), str)]


def _parameters(description: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = description.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
