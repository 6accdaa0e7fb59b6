"""Makes an answer of what `predict` returned for a row."""

import io
import sys
from typing import Any

import msgspec

from batching.errors import BadRequest, PredictionFailed
from ferry.modeling import Answer, BadInput

JSON_TYPE, TEXT_TYPE = "application/json", "text/plain; charset=utf-8"
_BYTES_TYPE = "application/octet-stream"


def encode(value: Any) -> tuple[bytes, str]:
    """Returns body and content type; NaN and infinity become null in JSON.

    Raises:
        PredictionFailed: no answer can have this type.
    """
    if isinstance(value, str):
        return value.encode(errors="replace"), TEXT_TYPE
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), _BYTES_TYPE
    if _is_image(value):
        return _png(value), "image/png"
    try:
        return _ENCODER.encode(value), JSON_TYPE
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PredictionFailed(
            f"predict returned what no answer can be made of: {error}."
        ) from error


def encoded(output: Any) -> Answer | Exception:
    """Returns the whole answer to a row, or the error that it is."""
    if isinstance(output, BadInput):
        return BadRequest(str(output))
    if isinstance(output, Exception):
        return output
    try:
        if not isinstance(output, Answer):
            body, kind = encode(output)
            return Answer(body, headers={"content-type": kind})
        body, kind = encode(output.body)
    except PredictionFailed as error:
        return error
    kind = output.content_type or kind
    return Answer(body, headers={"content-type": kind, **output.headers}, status=output.status)


def rows_of(outputs: Any) -> list[Any]:
    """Returns the outputs of a batch one by one; of an array or tensor, along its first axis.

    Raises:
        PredictionFailed: it is neither.
    """
    if isinstance(outputs, list | tuple):
        return list(outputs)
    if hasattr(outputs, "detach"):
        outputs = _array_of_tensor(outputs)
    if len(getattr(outputs, "shape", ())) > 0:
        return list(outputs)
    raise PredictionFailed(
        f"predict returned {type(outputs).__name__}: a list, array or tensor is wanted, with one "
        "output for each row."
    )


def _array_of_tensor(tensor: Any) -> Any:
    on_cpu = tensor.detach().cpu()
    is_known = str(on_cpu.dtype) != "torch.bfloat16"  # which numpy is not
    return (on_cpu if is_known else on_cpu.float()).numpy()


def _plain(value: Any) -> Any:
    """Returns what JSON can express for a value that msgspec does not know."""
    if hasattr(value, "detach"):
        value = _array_of_tensor(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _is_image(value: Any) -> bool:
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        image.save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise PredictionFailed(
            f"predict returned an image that PNG cannot hold: {error}."
        ) from error
    return buffer.getvalue()
