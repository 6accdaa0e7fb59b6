"""Makes an answer of what `predict` returned for a row."""

import io
import sys
from typing import Any

import msgspec

from batching.errors import PredictionFailed
from ferry.modeling import Answer

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
    pillow = sys.modules.get("PIL.Image")
    try:
        if pillow is not None and isinstance(value, pillow.Image):
            buffer = io.BytesIO()
            value.save(buffer, "PNG")
            return buffer.getvalue(), "image/png"
        return _ENCODER.encode(value), JSON_TYPE
    except (TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise PredictionFailed(
            f"predict returned what no answer can be made of: {error}."
        ) from error


def encoded(output: Any) -> Answer:
    """Returns the whole answer to a row.

    Raises:
        PredictionFailed: as `encode`.
    """
    if not isinstance(output, Answer):
        body, kind = encode(output)
        return Answer(body, headers={"content-type": kind})
    body, kind = encode(output.body)
    headers = {"content-type": output.content_type or kind, **output.headers}
    return Answer(body, headers=headers, status=output.status)


def rows_of(outputs: Any, size: int) -> list[Any]:
    """Returns the outputs of a batch one by one; of an array or tensor, along its first axis.

    Raises:
        PredictionFailed: it is neither, or has not as many.
    """
    if hasattr(outputs, "detach"):
        tensor = outputs.detach().cpu()
        is_known = str(tensor.dtype) != "torch.bfloat16"  # which numpy is not
        outputs = (tensor if is_known else tensor.float()).numpy()
    if not isinstance(outputs, list | tuple) and not getattr(outputs, "shape", ()):
        raise PredictionFailed(
            f"predict returned {type(outputs).__name__}: a list, array or tensor is wanted, with "
            "one output for each row."
        )
    if len(outputs) != size:
        raise PredictionFailed(
            f"predict returned {len(outputs)} outputs for {size} rows: one for each is wanted."
        )
    return list(outputs)


def _plain(value: Any) -> Any:
    """Returns what JSON can express for a value that msgspec does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
