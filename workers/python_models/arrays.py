"""Makes arrays of `.npy` bytes, JSON numbers and Open Inference tensors.

numpy is imported when it is needed: most models take other rows.
"""

import io
from importlib import import_module
from typing import Any

import msgspec
from ts.torch_handler.tensors import BF16, BY_DTYPE, BYTES, Tensor

from batching.errors import BadRequest

_NPY = b"\x93NUMPY"
# numpy has no such type as BF16.
DTYPES = {datatype: name for name, datatype in BY_DTYPE.items()} | {BF16: "float32"}


def values_of(content: bytes | bytearray) -> Any:
    """Returns the array of a `.npy` file, or what JSON says."""
    if content.startswith(_NPY):
        return _read_npy(content)
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is neither JSON nor a .npy file: {error}.") from error


def array_of(value: Any, dtype: Any = None) -> Any:
    """Returns a tensor, an array or nested lists as an array."""
    np: Any = import_module("numpy")
    try:
        if not isinstance(value, Tensor):
            return np.asarray(value, dtype)
        is_text = value.datatype == BYTES
        array = np.empty(len(value.values), object if is_text else DTYPES[value.datatype])
        array[:] = texts(value) if is_text else value.values
        return np.asarray(array.reshape(value.shape), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"not an array: {error}") from error


def numbers_of(value: Any, dtype: Any = None) -> Any:
    """Returns an array; from JSON it must have numbers only."""
    array = array_of(value, dtype)
    if not hasattr(value, "shape") and array.dtype.kind not in "biuf":
        raise ValueError("not an array of numbers")
    return array


def torch_tensor_of(value: Any) -> Any:
    """Returns a tensor as torch.tensor() would: numbers with a point get the default type."""
    torch: Any = import_module("torch")
    tensor = torch.from_numpy(numbers_of(value).copy())
    is_typed = hasattr(value, "shape") or not tensor.is_floating_point()
    return tensor if is_typed else tensor.to(torch.get_default_dtype())


def texts(tensor: Tensor) -> list[Any]:
    """Returns the values; elements of BYTES that are UTF-8 become text."""
    return [_text(value) if isinstance(value, bytes) else value for value in tensor.values]


def without_batch(tensor: Tensor, least_axes: int = 2) -> Tensor:
    if len(tensor.shape) >= least_axes and tensor.shape[:1] == [1]:
        return Tensor(tensor.datatype, tensor.shape[1:], tensor.values)
    return tensor


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _read_npy(content: bytes | bytearray) -> Any:
    """Reads the array, and runs nothing; a head that claims too much takes memory never used."""
    np: Any = import_module("numpy")
    stream = io.BytesIO(content)
    try:
        array = np.load(stream, allow_pickle=False)
    except Exception as error:  # of Python's own parser, too, which reads the head
        raise BadRequest(f"The .npy file cannot be read: {error}") from error
    if array.dtype.kind not in "biufcSU":
        raise BadRequest("The .npy file holds neither numbers nor text, but records.")
    if stream.tell() != len(content):
        raise BadRequest("The .npy file is longer than its head says.")
    return array
