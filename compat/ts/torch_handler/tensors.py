"""Converts tensors of the Open Inference Protocol, in JSON and binary, to Python lists and back.

Source: KServe Open Inference Protocol v2, "Tensor Data", and its binary tensor data extension:
values row by row, little endian, BYTES elements after their length in 4 bytes.
"""

import json
import math
import struct
from collections.abc import Iterable, Sequence
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
_LENGTH = struct.Struct("<I")
_MAX_DIMENSIONS = 32
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


def read_tensor(datatype: Any, shape: Any, data: Any) -> Tensor:
    """Returns the tensor that a request's JSON describes; `data` may be flat, nested or binary."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise BadTensor(f"Unknown datatype {str(datatype)[:32]!r}.")
    lengths = _checked_shape(shape)
    values = _from_binary(datatype, data) if isinstance(data, bytes) else _flat(data)
    if len(values) != math.prod(lengths):
        raise BadTensor(f"A tensor of shape {lengths} cannot have {len(values)} values.")
    return Tensor(datatype, lengths, values)


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
    shape = _shape_of(value)
    return None if shape is None else _typed(shape, _flat(value))


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


def _checked_shape(shape: Any) -> list[int]:
    is_shape = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not is_shape or not all(type(length) is int and length >= 0 for length in shape):
        raise BadTensor("The shape of a tensor is a list of lengths.")
    check_rows([shape])
    return list(shape)


def _from_binary(datatype: str, data: bytes) -> list[Any]:
    if datatype == BYTES:
        return _elements(data)
    if datatype == BF16:
        # BF16 is the upper half of a float. An odd number of bytes stays odd, and is refused.
        wide = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        return _from_binary("FP32", wide)
    size = struct.calcsize(f"<{_CODES[datatype]}")
    if len(data) % size:
        raise cut_off()
    return list(struct.unpack(f"<{len(data) // size}{_CODES[datatype]}", data))


def _elements(data: bytes) -> list[bytes]:
    elements, start = [], 0
    while start < len(data):
        if start + _LENGTH.size > len(data):
            raise cut_off()
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size + length
        if start > len(data):
            raise cut_off()
        elements.append(data[start - length : start])
    return elements


def cut_off() -> BadTensor:
    return BadTensor("The binary data of a tensor is cut off.")


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
