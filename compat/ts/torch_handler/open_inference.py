"""Reads and writes requests and tensors of the Open Inference Protocol, in JSON and binary.

Source: KServe Open Inference Protocol v2, "Inference" and "Tensor Data", and Triton's binary tensor
data extension, which Triton's clients use unless told otherwise: values row by row, little endian,
BYTES elements after their length in 4 bytes.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

BYTES, BF16 = "BYTES", "BF16"

# Datatype -> struct's letter.
_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
DATATYPES = frozenset({*_CODES, BYTES, BF16})

# By the names of numpy and torch.
BY_DTYPE = {
    "bool": "BOOL",
    "float16": "FP16",
    "half": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": BF16,
    **{
        f"{sign.lower()}int{bits}": f"{sign}INT{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
OUTPUT_NAME = "output"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY_SIZE = "binary_data_size"
_LENGTH = struct.Struct("<I")
_MAX_DIMENSIONS = 32
_CUT_OFF = "The binary data of a tensor is cut off."
# Per request. 6 MB of bytes with 31 dimensions of length 1 would become 13 GB of lists.
_MAX_ROWS = 1_000_000


class BadTensor(ValueError):
    """Tells a client of its mistake, with status 400."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Holds values in row-major order; text and bytes are the elements of BYTES."""

    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]

    def nested(self) -> Any:
        """Returns the values as nested lists, or the one value of shape []."""
        values = list(self.values)
        for length in reversed(self.shape[1:]):
            values = (
                [values[i : i + length] for i in range(0, len(values), length)] if length else []
            )
        return values if self.shape else values[0]

    def binary(self) -> bytes:
        if self.datatype == BYTES:
            elements = [_as_bytes(value) for value in self.values]
            return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
        if self.datatype == BF16:
            packed = struct.pack(f"<{len(self.values)}f", *self.values)
            return b"".join(packed[i + 2 : i + 4] for i in range(0, len(packed), 4))
        return struct.pack(f"<{len(self.values)}{_CODES[self.datatype]}", *self.values)

    def json_values(self) -> list[Any]:
        return [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for value in self.values
        ]

    def described(self, name: str, *, is_binary: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {"data": self.json_values()} if not is_binary else {}
        shape = list(self.shape)
        return {"name": name, "datatype": self.datatype, "shape": shape, **content}


def read_tensor(datatype: Any, shape: Any, data: Any) -> Tensor:
    """Returns the tensor that a request's JSON describes; `data` may be flat, nested or binary."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise BadTensor(f"Unknown datatype {str(datatype)[:32]!r}.")
    is_shape = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not is_shape or not all(type(length) is int and length >= 0 for length in shape):
        raise BadTensor("The shape of a tensor is a list of lengths.")
    check_rows([shape])
    values = _from_binary(datatype, data) if isinstance(data, bytes) else _flat(data)
    if len(values) != math.prod(shape):
        raise BadTensor(f"A tensor of shape {shape} cannot have {len(values)} values.")
    return Tensor(datatype, list(shape), values)


def check_rows(shapes: Iterable[Sequence[int]]) -> None:
    """Refuses tensors that would together become more than _MAX_ROWS nested lists."""
    if sum(rows for shape in shapes for rows in accumulate(shape[:-1], mul)) > _MAX_ROWS:
        raise BadTensor(f"The tensors of a request may be made of at most {_MAX_ROWS} rows.")


def tensor_of(value: Any) -> Tensor | None:
    """Returns a handler's output as a tensor; None for text, ragged lists and objects."""
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        shape, values = list(value.shape), _flat(value.tolist())
        datatype = BY_DTYPE.get(str(value.dtype).removeprefix("torch."))
        return Tensor(datatype, shape, values) if datatype else _typed(shape, values)
    lengths = _shape_of(value)
    return None if lengths is None else _typed(lengths, _flat(value))


def text_tensor(output: Any) -> Tensor:
    """Returns any output as one element of BYTES: bytes and text unchanged, the rest as JSON."""
    is_text = isinstance(output, (str, bytes, bytearray))
    return Tensor(BYTES, [1], [_as_bytes(output if is_text else json.dumps(output))])


def _typed(shape: list[int], values: list[Any]) -> Tensor | None:
    kinds = {type(value) for value in values}
    if kinds <= {bool} and kinds:
        return Tensor("BOOL", shape, values)
    if kinds <= {int} and all(-(2**63) <= value < 2**63 for value in values) and kinds:
        return Tensor("INT64", shape, values)
    if kinds <= {int, float} and kinds != {int}:
        return Tensor("FP64", shape, [float(value) for value in values])
    if kinds <= {str, bytes}:
        return Tensor(BYTES, shape, values)
    return None


def _from_binary(datatype: str, data: bytes) -> list[Any]:
    if datatype == BYTES:
        return _elements(data)
    if datatype == BF16:
        # BF16 is the upper half of a float. An odd number of bytes stays odd, and is refused.
        wide = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        return _from_binary("FP32", wide)
    size = struct.calcsize(f"<{_CODES[datatype]}")
    if len(data) % size:
        raise BadTensor(_CUT_OFF)
    return list(struct.unpack(f"<{len(data) // size}{_CODES[datatype]}", data))


def _elements(data: bytes) -> list[bytes]:
    elements, start = [], 0
    while start < len(data):
        if start + _LENGTH.size > len(data):
            raise BadTensor(_CUT_OFF)
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size + length
        if start > len(data):
            raise BadTensor(_CUT_OFF)
        elements.append(data[start - length : start])
    return elements


def _flat(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    while values and all(isinstance(item, list) for item in values):
        values = [item for inner in values for item in inner]
    return values


def _shape_of(value: Any) -> list[int] | None:
    """Returns the lengths of nested lists; None if they are ragged or hold more than scalars."""
    shape: list[int] = []
    level = [value]
    while level and isinstance(level[0], list) and len(shape) <= _MAX_DIMENSIONS:
        length = len(level[0])
        if any(not isinstance(item, list) or len(item) != length for item in level):
            return None
        shape.append(length)
        level = [item for inner in level for item in inner]
    scalars = (bool, int, float, str) if shape else (bool, int, float)
    return shape if all(isinstance(item, scalars) for item in level) else None


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


# --- requests


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
            raise BadTensor(f"The inference request is not JSON: {error}.") from error
        inputs = document.get("inputs") if isinstance(document, dict) else None
        if not isinstance(inputs, list) or not inputs:
            raise BadTensor("The inference request has no inputs.")
        tensors = list(_tensors(inputs, bytes(memoryview(content)[json_bytes:])))
        check_rows(tensor.shape for _, tensor in tensors)
        outputs = document.get("outputs")
        named = [it for it in outputs if _has_name(it)] if isinstance(outputs, list) else []
        return cls(document, dict(tensors), {it["name"]: _parameters(it) for it in named})

    def row(self) -> dict[str, Any]:
        """Returns the handler's row: input name -> value; an only input is `body`, too.

        A BYTES tensor of one element becomes that element, like the content of a file.
        """
        row = {}
        for name, it in self.inputs.items():
            values = [bytearray(one) if isinstance(one, bytes) else one for one in it.values]
            is_file = it.datatype == BYTES and len(values) == 1
            row[name] = values[0] if is_file else Tensor(it.datatype, it.shape, values).nested()
        if len(row) == 1:
            row["body"] = next(iter(row.values()))
        return row

    def with_data(self) -> dict[str, Any]:
        inputs = [tensor.described(name) for name, tensor in self.inputs.items()]
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
            asked, key = self.asked.get(name), "binary_data"
            if asked is None:
                asked, key = _parameters(self.document), "binary_data_output"
            is_binary = asked.get(key) is True
            outputs.append(described := tensor.described(name, is_binary=is_binary))
            if is_binary:
                content = tensor.binary()
                binary += content
                described["parameters"] = {_BINARY_SIZE: len(content)}
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


def _tensors(inputs: list[Any], binary: bytes) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for described in inputs:
        if not _has_name(described):
            raise BadTensor("An input of the inference request has no name.")
        data = described.get("data")
        if (size := _parameters(described).get(_BINARY_SIZE)) is not None:
            if type(size) is not int or not 0 <= size <= len(binary) - start:
                raise BadTensor(_CUT_OFF)
            data = binary[start : start + size]
            start += size
        tensor = read_tensor(described.get("datatype"), described.get("shape"), data)
        yield described["name"], tensor


def _has_name(described: Any) -> bool:
    return isinstance(described, dict) and isinstance(described.get("name"), str)


def _parameters(described: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = described.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
