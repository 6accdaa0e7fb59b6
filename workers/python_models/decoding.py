"""Makes a row of a request, by the annotation of `predict`: `list[T]` takes rows of type T."""

import base64
import binascii
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
from ts.torch_handler.request_envelope.tensors import BF16, BYTES, Tensor

from batching.errors import BadRequest
from batching.protocol import Part
from workers.python_models import arrays
from workers.python_models.row import Row

IMAGE, ARRAY, TENSOR = "PIL.Image.Image", "numpy.ndarray", "torch.Tensor"
FLOATS = frozenset({"FP16", "FP32", "FP64", BF16})
_SPECIAL = frozenset({IMAGE, ARRAY, TENSOR})
# Of nested types in a schema.
_MOST_LEVELS = 8


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a body becomes a row. `kind` is one of json, text, image, bytes, tensor, form and any."""

    kind: str
    type_name: str
    decode: Callable[[Row], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)


def decoder_of(annotation: Any) -> Decoder:
    """Returns the decoder for rows of this type.

    Args:
        annotation: T of `list[T]`; None where `predict` has no annotation.

    Raises:
        TypeError: rows cannot have this type.
    """
    if annotation is None:
        return Decoder("any", "any", _decode_any)
    name, special = _name_of(annotation), _special_name(annotation)
    plain = {
        bytes: Decoder("bytes", name, lambda row: bytes(_content(row))),
        str: Decoder("text", name, _decode_text, {"type": "string"}),
    }
    if annotation in plain:
        return plain[annotation]
    if special == IMAGE:
        return Decoder("image", name, lambda row: _image(_value(row)))
    if special:
        read = partial(_special, annotation)
        return Decoder("tensor", name, lambda row: read(_array_value(row)), {"type": "array"})
    if hasattr(annotation, "model_validate"):  # pydantic
        schema = _inlined(annotation.model_json_schema())
        return Decoder("json", name, partial(_decode_pydantic, annotation), schema)
    return _structured(annotation, name)


def _structured(annotation: Any, name: str) -> Decoder:
    try:
        decode = msgspec.json.Decoder(annotation, dec_hook=_special).decode
        schema = _inlined(msgspec.json.schema(annotation, schema_hook=_special_schema))
    except (TypeError, NotImplementedError) as error:
        raise TypeError(
            f"predict takes a list of {name}, which no body can become: {error}"
        ) from error
    kind = "form" if "ferry-part" in str(schema) else "json"
    return Decoder(kind, name, partial(_decode_structured, annotation, decode), schema)


def row_type(annotation: Any) -> Any:
    """Returns T of `list[T]`, None for a bare `list` or no annotation.

    Raises:
        TypeError: the annotation is not a list.
    """
    if annotation in (None, Any, list):
        return None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    is_list = isinstance(origin, type) and issubclass(origin, Iterable)
    if not is_list or len(arguments) != 1 or origin in (set, frozenset):
        raise TypeError(
            f"predict takes a batch: annotate it with list[T], not {_name_of(annotation)}"
        )
    return arguments[0]


def described(annotation: Any) -> tuple[str, Mapping[str, Any]]:
    """Returns the name and the JSON schema of a row's output, as far as they are known."""
    try:
        kind = row_type(annotation)
    except TypeError:  # an array, say, or a generator
        return _name_of(annotation), {}
    if kind is None:
        return "any", {}
    try:
        return _name_of(kind), decoder_of(kind).schema
    except TypeError:
        return _name_of(kind), {}


# --- one value


def _decode_any(row: Row) -> Any:
    if row.inference is not None:
        return _from_tensors(row)
    if len(row.parts) > 1:
        return {name: _guessed(part) for name, part in row.parts.items()}
    return _guessed(row.body)


def _guessed(part: Part) -> Any:
    """Returns JSON as Python values, an image as such, else bytes; clients often send no type."""
    if part.content_type.startswith("image/"):
        return _image(part.content)
    try:
        return msgspec.json.decode(part.content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return bytes(part.content)


def _decode_text(row: Row) -> str:
    if row.inference is not None:
        value = _from_tensors(row)
        if isinstance(value, str):
            return value
        raise BadRequest("Text is wanted: a tensor of BYTES with one element.")
    part = row.body
    try:
        text = part.content.decode()
        value = msgspec.json.decode(text) if part.content_type == "application/json" else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"Text in UTF-8 is wanted, or a JSON string: {error}.") from error
    if not isinstance(value, str):
        raise BadRequest("Text is wanted, or a JSON string.")
    return value


def _decode_structured(annotation: Any, decode: Callable[[Any], Any], row: Row) -> Any:
    try:
        if row.inference is not None:
            values = _from_tensors(row)
            return msgspec.convert(values, annotation, strict=False, dec_hook=_special)
        is_form = len(row.fields) > 1 or (row.fields is row.parts and not _has_body(row))
        if not is_form:
            try:
                return decode(row.body.content)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                if row.fields is row.parts:
                    raise
        fields = {name: _field(part) for name, part in row.fields.items()}
        return msgspec.convert(fields, annotation, strict=False, dec_hook=_special)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequest(
            f"The body is not the {_name_of(annotation)} that is wanted: {error}."
        ) from error


def _decode_pydantic(annotation: Any, row: Row) -> Any:
    try:
        values = _from_tensors(row) if row.inference is not None else _json(row.body.content)
        return annotation.model_validate(values)
    except ValueError as error:  # pydantic's own is one
        raise BadRequest(
            f"The body is not the {annotation.__name__} that is wanted: {_first(error)}"
        ) from error


def _first(error: ValueError) -> str:
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    one = details()[0]
    return f"{one['msg']} - at `{'.'.join(['$', *map(str, one['loc'])])}`"


def _has_body(row: Row) -> bool:
    return "body" in row.parts or "data" in row.parts


def _field(part: Part) -> Any:
    """Returns a form's file as bytes, and any other field as text."""
    is_text = not part.content_type or part.content_type.startswith("text/")
    return part.content.decode() if is_text else bytes(part.content)


def _json(content: bytes | bytearray) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not JSON: {error}.") from error


def _content(row: Row) -> bytes | bytearray:
    if row.inference is None:
        return row.body.content
    value = _from_tensors(row)
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise BadRequest("Bytes are wanted: a tensor of BYTES with one element.")
    return value


def _value(row: Row) -> bytes | bytearray | str:
    """Returns the bytes of a file, or the text of a JSON string, which is base64."""
    content = _content(row)
    return str(_json(content)) if content[:1] == b'"' else content


def _array_value(row: Row) -> Any:
    if row.inference is not None:
        (tensor, *others) = row.inference.inputs.values()
        if others:
            raise BadRequest(f"One tensor is wanted, not {1 + len(others)}.")
        return one_row(tensor)
    content = row.body.content
    return content if content.startswith(b"\x93NUMPY") else _json(content)


# --- tensors


def one_row(tensor: Tensor) -> Tensor:
    """Returns the tensor without its first axis if that is 1: the protocol has it for the batch."""
    if len(tensor.shape) > 1 and tensor.shape[0] == 1:
        return Tensor(tensor.datatype, tensor.shape[1:], tensor.values)
    return tensor


def _from_tensors(row: Row) -> Any:
    assert row.inference is not None
    values = {name: _plain(one_row(tensor)) for name, tensor in row.inference.inputs.items()}
    return next(iter(values.values())) if len(values) == 1 else values


def _plain(tensor: Tensor) -> Any:
    if tensor.datatype in FLOATS:
        # JSON spells 1.0 as 1, too.
        return Tensor(tensor.datatype, tensor.shape, [float(one) for one in tensor.values]).nested()
    if tensor.datatype != BYTES:
        return tensor.nested()
    texts = [_text_or_bytes(value) for value in tensor.values]
    return texts[0] if len(texts) == 1 else Tensor(BYTES, tensor.shape, texts).nested()


def _text_or_bytes(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


# --- types that need a library


def _special(kind: Any, value: Any) -> Any:
    """Makes an image, array or tensor of a file's bytes, JSON's values or a tensor."""
    special = _special_name(kind)
    if special == IMAGE:
        return _image(value)
    if special is None:
        raise NotImplementedError(f"{kind!r}")
    if isinstance(value, str):
        value = _from_base64(value)
    if isinstance(value, bytes | bytearray):
        array = (
            arrays.read_npy(value) if arrays.is_npy(value) else arrays.array_of_json(_json(value))
        )
    elif isinstance(value, Tensor):
        array = arrays.array_of(value)
    elif special == TENSOR:
        return _torch_tensor(value)
    else:
        array = arrays.array_of_json(value, _dtype(kind))
    if special == TENSOR:
        return import_module("torch").from_numpy(array.copy())
    return array if (dtype := _dtype(kind)) is None else array.astype(dtype, copy=False)


def _torch_tensor(value: Any) -> Any:
    array = arrays.array_of_json(value)
    # As torch.tensor() makes them: numbers with a point are of the default type.
    tensor = import_module("torch").from_numpy(array.copy())
    return (
        tensor.to(import_module("torch").get_default_dtype()) if array.dtype.kind == "f" else tensor
    )


def _image(value: Any) -> Any:
    content = _from_base64(value) if isinstance(value, str) else value
    opened = import_module("ts.torch_handler.images").open_image(content)
    return import_module("PIL.ImageOps").exif_transpose(opened)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(
            text.partition(",")[2] if text.startswith("data:") else text, validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"A file within JSON is text in base64: {error}.") from error


def _special_name(kind: Any) -> str | None:
    kind = typing.get_origin(kind) or kind
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"
    return name if name in _SPECIAL else None


def _special_schema(kind: Any) -> dict[str, Any]:
    special = _special_name(kind)
    if special is None:
        raise NotImplementedError(f"{kind!r}")
    shape = (
        {"type": "string", "format": "binary"}
        if special == IMAGE
        else {"type": "array", "items": {}}
    )
    return {**shape, "title": "ferry-part"}


def _dtype(kind: Any) -> Any:
    """Returns numpy's type in `NDArray[np.float32]`; None where it is not said."""
    arguments = typing.get_args(kind)
    inner = typing.get_args(arguments[1]) if len(arguments) > 1 else ()
    return inner[0] if inner and isinstance(inner[0], type) else None


def _name_of(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return (
            annotation.__name__ if annotation.__module__ == "builtins" else annotation.__qualname__
        )
    return str(annotation).replace("typing.", "")


def _inlined(schema: Any) -> Any:
    """Returns a JSON schema without references, as it will stand inside of another document."""
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
