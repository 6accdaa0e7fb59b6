"""Makes requests the rows that a handler sees, and its outputs the bytes of answers.

Source: TorchServe 0.12 docs/batch_inference_with_ts.md and its worker protocol, as an interface.
"""

import io
import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from batching.errors import PredictionFailed
from batching.protocol import OPEN_INFERENCE_TYPE, Part, Request
from workers.python_models.open_inference import Inference

log = logging.getLogger(__name__)


def decode_row(request: Request, *, is_decoding: bool) -> dict[str, Any]:
    """Returns one value per part; the last of equal names wins.

    Args:
        request: as the ingress wrote it.
        is_decoding: JSON becomes Python values and text becomes str; otherwise all is bytearray.

    Raises:
        BadRequest: the body is no inference request, though its type says so.
    """
    row: dict[str, Any] = {}
    for part in request.parts:
        read = _reader(part.content_type, is_decoding)
        row[part.name] = part.content if read is None else read(part)
    return row


def request_headers(request: Request) -> dict[str, Any]:
    """Returns each part's own headers under the part's name, and the request's."""
    parts = {part.name: {"content-type": part.content_type} for part in request.parts}
    return {**parts, **request.headers}


def encode_output(output: Any) -> bytes:
    """Returns an answer's body: bytes as such, text as UTF-8, tensors saved, the rest as JSON."""
    if isinstance(output, bytes | bytearray):
        return bytes(output)
    try:
        if isinstance(output, str):
            return output.encode()
        # A handler that returns a tensor has imported torch; an echo handler need not wait for it.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(output, torch.Tensor):
            buffer = io.BytesIO()
            # From the CPU, so that a client without this GPU can load it.
            torch.save(output.detach().cpu(), buffer)
            return buffer.getvalue()
        return json.dumps(output, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PredictionFailed("Unsupported model output data type.") from error


def header_texts(headers: Mapping[str, Any]) -> dict[str, str]:
    return {line_text(name): line_text(value) for name, value in headers.items()}


def line_text(value: Any) -> str:
    """Returns the value as text; refuses text that would begin another line of an HTTP head."""
    text = str(value)
    if not text.isprintable():
        raise ValueError(f"not a response header or reason phrase: {text!r}")
    return text


@lru_cache(maxsize=256)
def _reader(content_type: str, is_decoding: bool) -> Callable[[Part], Any] | None:
    """Returns what reads contents of this type; None if the handler gets the bytes."""
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == OPEN_INFERENCE_TYPE and parameters.startswith("json="):
        json_bytes = int(parameters.removeprefix("json="))
        return lambda part: Inference.read(part.content, json_bytes)
    if not is_decoding:
        return None
    if kind == "application/json":
        return partial(_decoded, json.loads, kind)
    return partial(_decoded, bytearray.decode, kind) if kind.startswith("text") else None


def _decoded(decode: Callable[[Any], Any], kind: str, part: Part) -> Any:
    try:
        return decode(part.content)
    except (ValueError, RecursionError) as error:
        template = "undecodable part=%r type=%r: the handler gets its bytes (%s)"
        log.warning(template, part.name, kind, error)
        return part.content
