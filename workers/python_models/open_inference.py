"""Reads and answers requests of the Open Inference Protocol, for handlers that do not know it.

Source: KServe Open Inference Protocol v2 "Inference", and Triton's binary tensor data extension,
which Triton's clients use unless told otherwise.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ts.torch_handler.tensors import (
    BYTES,
    Tensor,
    check_rows,
    cut_off,
    read_tensor,
    tensor_of,
    text_tensor,
)

from batching.errors import BadRequest

OUTPUT_NAME = "output"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY_SIZE = "binary_data_size"


@dataclass(frozen=True, slots=True)
class Inference:
    """Holds a request. `asked`: name of an output that it asks for -> parameters."""

    document: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    asked: Mapping[str, Mapping[str, Any]]

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
        outputs = document.get("outputs")
        named = [it for it in outputs if _has_name(it)] if isinstance(outputs, list) else []
        return cls(document, dict(tensors), {it["name"]: _parameters(it) for it in named})

    def row(self) -> dict[str, Any]:
        """Returns the handler's row: input name -> value; an only input is `body`, too.

        A BYTES tensor of one element becomes that element, like the content of a file.
        """
        row = {name: _plain(tensor) for name, tensor in self.inputs.items()}
        if len(row) == 1:
            row["body"] = next(iter(row.values()))
        return row

    def with_data(self) -> dict[str, Any]:
        """Returns the request's document, with the values of binary tensors in it."""
        tensors = self.inputs.items()
        inputs = [_described(name, tensor, data=tensor.json_values()) for name, tensor in tensors]
        return {**self.document, "inputs": inputs}

    def answer(
        self, output: Any, model_name: str, model_version: str
    ) -> tuple[bytes, dict[str, str]]:
        """Returns body and headers for a handler's output, which may be a whole answer already."""
        if isinstance(output, dict) and isinstance(output.get("outputs"), list):
            return json.dumps(output).encode(), {"content-type": "application/json"}
        document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
        if isinstance(self.document.get("id"), str):
            document["id"] = self.document["id"]
        document["outputs"] = outputs = []
        binary = b""
        for name, tensor in self._named(output).items():
            if self._wants_binary(name):
                content = tensor.binary()
                binary += content
                size = {_BINARY_SIZE: len(content)}
                outputs.append(_described(name, tensor, parameters=size))
            else:
                outputs.append(_described(name, tensor, data=tensor.json_values()))
        head = json.dumps(document).encode()
        if not binary:
            return head, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", _HEADER_LENGTH: str(len(head))}
        return head + binary, headers

    def _named(self, output: Any) -> dict[str, Tensor]:
        """Returns the outputs by name; if there are several, only the ones asked for."""
        if isinstance(output, dict) and output:
            tensors = {str(name): tensor_of(value) for name, value in output.items()}
            shaped = {name: it for name, it in tensors.items() if it is not None and it.shape}
            if len(shaped) == len(output):
                wanted = self.asked or shaped
                return {name: tensor for name, tensor in shaped.items() if name in wanted}
        name = next(iter(self.asked)) if len(self.asked) == 1 else OUTPUT_NAME
        return {name: tensor_of(output) or text_tensor(output)}

    def _wants_binary(self, name: str) -> bool:
        if name in self.asked:
            return self.asked[name].get("binary_data") is True
        return _parameters(self.document).get("binary_data_output") is True


def _tensors(inputs: list[Any], binary: bytes) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for described in inputs:
        if not _has_name(described):
            raise BadRequest("An input of the inference request has no name.")
        data = described.get("data")
        if (size := _parameters(described).get(_BINARY_SIZE)) is not None:
            if type(size) is not int or not 0 <= size <= len(binary) - start:
                raise cut_off()
            data = binary[start : start + size]
            start += size
        tensor = read_tensor(described.get("datatype"), described.get("shape"), data)
        yield described["name"], tensor


def _described(name: str, tensor: Tensor, **content: Any) -> dict[str, Any]:
    shape = list(tensor.shape)
    return {"name": name, "datatype": tensor.datatype, "shape": shape, **content}


def _plain(tensor: Tensor) -> Any:
    if tensor.datatype != BYTES:
        return tensor.nested()
    values = [bytearray(value) if isinstance(value, bytes) else value for value in tensor.values]
    return values[0] if len(values) == 1 else Tensor(BYTES, tensor.shape, values).nested()


def _has_name(described: Any) -> bool:
    return isinstance(described, dict) and isinstance(described.get("name"), str)


def _parameters(described: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = described.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
