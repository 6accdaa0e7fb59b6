"""Makes rows of requests, by the annotation of `predict`: `list[T]` takes rows of type T.

numpy, torch and Pillow are imported when a model's rows need them.
"""

import base64
import contextlib
import io
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from ts.torch_handler.open_inference import BF16, BY_DTYPE, BYTES, Inference, Tensor
from ts.utils.util import PredictionException

from batching.errors import BadRequest, ServeError
from batching.protocol import OPEN_INFERENCE_TYPE, Part
from ferry.modeling import BadInput, Model

_JSON, _URLENCODED = "application/json", "application/x-www-form-urlencoded"
_INFERENCE = f"{OPEN_INFERENCE_TYPE};json="
_IMAGE, _ARRAY, _TENSOR = "PIL.Image.Image", "numpy.ndarray", "torch.Tensor"
_FLOATS = frozenset({"FP16", "FP32", "FP64", BF16})
# numpy has no such type as BF16.
DTYPES = {datatype: name for name, datatype in BY_DTYPE.items()} | {BF16: "float32"}
_NPY = b"\x93NUMPY"
# How deep types may be nested in a schema.
_MOST_LEVELS = 8
# What a refusal says is wanted, where the annotation's name does not tell.
_WANTED = {"text": "text in UTF-8 or JSON string", "any": "JSON"}
# In the schema of a file within a form.
_FILE_MARK = "ferry-part"


@dataclass
class Row:
    parts: Mapping[str, Part]

    @cached_property
    def inference(self) -> Inference | None:
        """Returns the request read by the Open Inference Protocol; None if it is none of it."""
        body = self.parts.get("body")
        if body is None or not body.content_type.startswith(_INFERENCE):
            return None
        return Inference.read(body.content, int(body.content_type.rpartition("=")[2]))

    @property
    def whole(self) -> Part | None:
        """Returns the body, or the field that TorchServe's clients send in its place."""
        return self.parts.get("body") or self.parts.get("data")

    @property
    def body(self) -> Part:
        """Returns the only value of the request.

        Raises:
            BadRequest: there are several, and none is called `body` or `data`.
        """
        part = self.whole
        if part is None and len(self.parts) == 1:
            (part,) = self.parts.values()
        if part is None:
            names = ", ".join(sorted(self.parts)) or "none"
            raise BadRequest(
                f"One value is wanted, as the body or as a field `data`; fields: {names}."
            )
        # `curl -d` calls any body a form; `data=…`, as TorchServe's clients send it, is one.
        if part.content_type != _URLENCODED or not part.content.startswith((b"data=", b"body=")):
            return part
        return next(iter(self.fields.values())) if len(self.fields) == 1 else part

    @cached_property
    def fields(self) -> Mapping[str, Part]:
        body = self.parts.get("body")
        if len(self.parts) != 1 or body is None or body.content_type != _URLENCODED:
            return self.parts
        pairs = parse_qsl(body.content.decode("utf-8", "replace"), keep_blank_values=True)
        return {name: Part(name, "", bytearray(text.encode())) for name, text in pairs}


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes a row of a body. `kind`: json, text, image, bytes, tensor, form or any."""

    kind: str
    type_name: str
    read: Callable[[Row], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)

    def decode(self, row: Row) -> Any:
        try:
            return self.read(row)
        except (ServeError, PredictionException, BadInput) as error:
            return error
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            wanted = _WANTED.get(self.kind) or self.type_name or self.kind
            return BadRequest(f"The body is not the {wanted} that is wanted: {error}.")


class FileModel(Model):
    """Serves a file without code: `load` sets how it reads rows, and how it describes itself."""

    decoder: Decoder
    interface: dict[str, Any]


def decoder_of(annotation: Any) -> Decoder:
    """Returns the decoder for rows of this type.

    Args:
        annotation: T of `list[T]`; None where `predict` has no annotation.

    Raises:
        TypeError: rows cannot have this type.
    """
    if annotation is None:
        return Decoder("any", "any", _decode_any)
    name, library = _name_of(annotation), _library_type(annotation)
    if annotation is bytes:
        return Decoder("bytes", name, _decode_bytes)
    if annotation is str:
        return Decoder("text", name, _decode_text, {"type": "string"})
    if library == _IMAGE:
        return Decoder("image", name, lambda row: _image(_content(row)))
    if library:
        return Decoder("tensor", name, partial(_decode_array, annotation), {"type": "array"})
    try:
        decode = msgspec.json.Decoder(annotation, dec_hook=_convert).decode
        schema = _inlined(msgspec.json.schema(annotation, schema_hook=_library_schema))
    except (TypeError, NotImplementedError) as error:
        raise TypeError(
            f"predict takes a list of {name}, which no body can become: {error}"
        ) from error
    kind = "form" if _FILE_MARK in str(schema) else "json"
    return Decoder(kind, name, partial(_decode_structured, annotation, decode), schema)


def row_type(annotation: Any) -> Any:
    if annotation in (None, Any, list):
        return None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    is_list = isinstance(origin, type) and issubclass(origin, Iterable)
    if not is_list or len(arguments) != 1 or origin in (set, frozenset):
        raise TypeError(
            f"predict takes a batch: annotate it with list[T], not {_name_of(annotation)}"
        )
    return arguments[0]


def described_output(annotation: Any) -> dict[str, Any]:
    """Returns the name and the JSON schema of a row's output, as far as they are known."""
    kind = annotation
    try:
        kind = row_type(annotation)
        return {"type": _name_of(kind) if kind else "any", "schema": decoder_of(kind).schema}
    except TypeError:  # an array, say, or a generator
        return {"type": _name_of(kind), "schema": {}}


# --- one value


def _decode_any(row: Row) -> Any:
    if row.inference is not None:
        return _from_tensors(row.inference)
    if len(row.parts) > 1:
        return {name: _guessed(part) for name, part in row.parts.items()}
    return _guessed(row.body)


def _guessed(part: Part) -> Any:
    """Returns an image, JSON's values, or bytes: clients often send no content type."""
    if part.content_type.startswith("image/"):
        return _image(part.content)
    try:
        return msgspec.json.decode(part.content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # Otherwise misspelt JSON of `curl -d` would be served as bytes.
        if part.content_type in (_JSON, _URLENCODED) and part.content.startswith((b"[", b"{")):
            raise
        return bytes(part.content)


def _decode_bytes(row: Row) -> bytes:
    content = _content(row)
    return content.encode() if isinstance(content, str) else bytes(content)


def _decode_text(row: Row) -> str:
    content = _content(row)
    decoded = content if isinstance(content, str) else content.decode()
    is_json = row.inference is None and row.body.content_type == _JSON
    return msgspec.json.decode(decoded, type=str) if is_json else decoded


def _decode_array(annotation: Any, row: Row) -> Any:
    if row.inference is None:
        return _convert(annotation, row.body.content)
    (tensor, *others) = row.inference.inputs.values()
    if others:
        raise BadRequest(f"One tensor is wanted, not {1 + len(others)}.")
    return _convert(annotation, without_batch(tensor))


def _decode_structured(annotation: Any, decode: Callable[[Any], Any], row: Row) -> Any:
    if row.inference is not None:
        values = _from_tensors(row.inference)
    else:
        if len(row.parts) == 1 and row.whole is not None:
            try:
                return decode(row.body.content)
            except msgspec.DecodeError as error:
                if isinstance(error, msgspec.ValidationError) or row.fields is row.parts:
                    raise
        values = {}
        for name, part in row.fields.items():
            is_text = not part.content_type or part.content_type.startswith("text/")
            values[name] = part.content.decode() if is_text else bytes(part.content)
    return msgspec.convert(values, annotation, strict=False, dec_hook=_convert)


def _content(row: Row) -> bytes | bytearray | str:
    if row.inference is None:
        return row.body.content
    value = _from_tensors(row.inference)
    if not isinstance(value, str | bytes):
        raise BadRequest("A tensor of BYTES with one element is wanted.")
    return value


def _from_tensors(inference: Inference) -> Any:
    """Returns nested lists by the names of the inputs; only the lists if there is one input."""
    nested = {}
    for name, sent in inference.inputs.items():
        tensor = without_batch(sent)
        values = tensor.values
        if tensor.datatype in _FLOATS:
            values = [float(value) for value in values]  # JSON spells 1.0 as 1, too
        elif tensor.datatype == BYTES:
            values = _texts(tensor)
        is_single = tensor.datatype == BYTES and len(values) == 1
        whole = Tensor(tensor.datatype, tensor.shape, values)
        nested[name] = values[0] if is_single else whole.nested()
    return next(iter(nested.values())) if len(nested) == 1 else nested


# --- types that need a library


def _convert(kind: Any, value: Any) -> Any:
    library = _library_type(kind)
    if library == _IMAGE:
        return _image(value)
    if library:
        if isinstance(value, str | bytes | bytearray):
            value = values_of(_file(value))
        array = array_of(value, None if library == _TENSOR else _dtype(kind))
        is_typed = hasattr(value, "shape")
        if not is_typed and array.dtype.kind not in "biuf":
            raise ValueError("not an array of numbers")
        if library == _ARRAY:
            return array
        torch: Any = import_module("torch")
        tensor = torch.from_numpy(array.copy())
        # As torch.tensor() would: numbers with a point get the default type.
        is_default = not is_typed and tensor.is_floating_point()
        return tensor.to(torch.get_default_dtype()) if is_default else tensor
    if not hasattr(kind, "model_validate"):
        raise NotImplementedError(f"{kind!r}")
    try:
        return kind.model_validate(value)
    except import_module("pydantic").ValidationError as error:
        first = error.errors()[0]
        location = ".".join(["$", *map(str, first["loc"])])
        raise ValueError(f"{first['msg']} - at `{location}`") from error


def _image(value: Any) -> Any:
    opened = import_module("ts.torch_handler.images").open_image(_file(value))
    return import_module("PIL.ImageOps").exif_transpose(opened)


def _file(value: Any) -> bytes | bytearray:
    """Returns the bytes of a file; text, or a body of JSON, has them in base64."""
    if isinstance(value, bytes | bytearray):
        if value[:1] != b'"':
            return value
        value = msgspec.json.decode(value, type=str)
    if not isinstance(value, str):
        raise ValueError("a file is wanted")
    encoded = value.partition(",")[2] if value.startswith("data:") else value
    return base64.b64decode(encoded, validate=True)


def _library_type(kind: Any) -> str:
    """Returns the type's name if it is an image, array or tensor; else ""."""
    kind = typing.get_origin(kind) or kind
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"
    return name if name in (_IMAGE, _ARRAY, _TENSOR) else ""


def _library_schema(kind: Any) -> dict[str, Any]:
    library = _library_type(kind)
    if library == _IMAGE:
        return {"type": "string", "format": "binary", "title": _FILE_MARK}
    if library:
        return {"type": "array", "items": {}, "title": _FILE_MARK}
    if not hasattr(kind, "model_json_schema"):
        raise NotImplementedError(f"{kind!r}")
    schema: dict[str, Any] = _inlined(kind.model_json_schema())
    return schema


def _dtype(kind: Any) -> Any:
    """Returns numpy's type in `NDArray[np.float32]`; None without one."""
    arguments = typing.get_args(kind)
    inner = typing.get_args(arguments[1]) if len(arguments) > 1 else ()
    return inner[0] if inner and isinstance(inner[0], type) else None


def _name_of(annotation: Any) -> str:
    is_plain = isinstance(annotation, type)
    return annotation.__qualname__ if is_plain else str(annotation).replace("typing.", "")


def _inlined(schema: Any) -> Any:
    """Returns a JSON schema without references, so that it can be put into another document."""
    definitions = schema.get("$defs", {})

    def inline(value: Any, levels: int) -> Any:
        if isinstance(value, list):
            return [inline(item, levels) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            name = value["$ref"].rpartition("/")[2]
            return inline(definitions.get(name, {}), levels + 1) if levels < _MOST_LEVELS else {}
        return {key: inline(item, levels) for key, item in value.items() if key != "$defs"}

    return inline(schema, 0)


# --- arrays


def values_of(content: bytes | bytearray) -> Any:
    """Returns the array of a `.npy` file, or what JSON says.

    Nothing in such a file is run; a head that claims too much takes memory that is never used.
    """
    if not content.startswith(_NPY):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"The body is neither JSON nor a .npy file: {error}.") from error
    stream = io.BytesIO(content)
    try:
        array = import_module("numpy").load(stream, allow_pickle=False)
    except Exception as error:  # of Python's own parser, too, which reads the head
        raise BadRequest(f"The .npy file cannot be read: {error}") from error
    if array.dtype.kind not in "biufcSU":
        raise BadRequest("The .npy file holds neither numbers nor text, but records.")
    if stream.tell() != len(content):
        raise BadRequest("The .npy file is longer than its head says.")
    return array


def array_of(value: Any, dtype: Any = None) -> Any:
    """Returns a tensor, an array or nested lists as an array."""
    np: Any = import_module("numpy")
    try:
        if not isinstance(value, Tensor):
            return np.asarray(value, dtype)
        is_text = value.datatype == BYTES
        array = np.empty(len(value.values), object if is_text else DTYPES[value.datatype])
        array[:] = _texts(value) if is_text else value.values
        return np.asarray(array.reshape(value.shape), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"not an array: {error}") from error


def without_batch(tensor: Tensor, least_axes: int = 2) -> Tensor:
    if len(tensor.shape) >= least_axes and tensor.shape[:1] == [1]:
        return Tensor(tensor.datatype, tensor.shape[1:], tensor.values)
    return tensor


def _texts(tensor: Tensor) -> list[Any]:
    """Returns the values; elements of BYTES that are UTF-8 become text."""
    values = list(tensor.values)
    for index, value in enumerate(values):
        with contextlib.suppress(UnicodeDecodeError):
            values[index] = value.decode() if isinstance(value, bytes) else value
    return values
