"""Makes arrays of `.npy` bytes, JSON numbers and Open Inference tensors.

numpy is imported when it is needed: most models take other rows.
"""

import io
import math
from importlib import import_module
from typing import Any

from ts.torch_handler.request_envelope.tensors import BF16, BYTES, Tensor

from batching.errors import BadRequest

_NPY = b"\x93NUMPY"
DTYPES = {
    "BOOL": "bool",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    BF16: "float32",  # numpy has no such type
    **{
        f"{sign}INT{bits}": f"{sign.lower()}int{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
_MOST_DIMENSIONS = 32


def is_npy(content: bytes | bytearray) -> bool:
    return content.startswith(_NPY)


def read_npy(content: bytes | bytearray) -> Any:
    """Returns the array of a `.npy` file; copies nothing and runs nothing of it.

    Raises:
        BadRequest: it is none, holds Python objects, or has fewer bytes than its head says.
    """
    np: Any = import_module("numpy")

    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read_head = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_head(stream)
    except Exception as error:  # of Python's own parser, too, which reads the head
        raise BadRequest(f"The .npy file has no readable head: {error}") from error
    if dtype.kind not in "biufcSU":
        raise BadRequest("The .npy file holds neither numbers nor text, but objects or records.")
    values = memoryview(content)[stream.tell() :]
    if len(shape) > _MOST_DIMENSIONS or len(values) != math.prod(shape) * dtype.itemsize:
        raise BadRequest(
            f"The .npy file says shape {list(shape)} of {dtype}, but has {len(values)} bytes of it."
        )
    flat = np.frombuffer(values, dtype) if dtype.itemsize else np.zeros(math.prod(shape), dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def array_of(tensor: Tensor) -> Any:
    """Returns an Open Inference tensor as an array; elements of BYTES as text where they are."""
    np: Any = import_module("numpy")

    if tensor.datatype == BYTES:
        values = np.empty(len(tensor.values), object)
        values[:] = [_text(value) for value in tensor.values]
        return values.reshape(tensor.shape)
    return np.array(tensor.values, DTYPES[tensor.datatype]).reshape(tensor.shape)


def array_of_json(value: Any, dtype: Any = None) -> Any:
    """Returns nested lists of numbers as an array.

    Raises:
        BadRequest: ragged, or not numbers.
    """
    np: Any = import_module("numpy")

    try:
        array = np.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"The body is not an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadRequest("The body is not an array of numbers.")
    return array


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value
