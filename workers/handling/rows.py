"""Makes requests the rows that a handler sees, and its outputs the bytes of answers.

Source: TorchServe 0.12 docs/batch_inference_with_ts.md and its worker protocol, as an interface.
"""

import io
import json
import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from batching.errors import PredictionFailed
from batching.protocol import OPEN_INFERENCE_TYPE, Part, Request
from workers.handling.open_inference import Inference

log = logging.getLogger(__name__)


def decode_row(request: Request, *, is_decoding: bool) -> dict[str, Any]:
    """Returns one value per part; the last of equal names wins.

    Args:
        request: as the ingress wrote it.
        is_decoding: JSON becomes Python values and text becomes str; otherwise all is bytearray.

    Raises:
        BadRequest: the body is no inference request, though its type says so.
    """
    return {
        part.name: _decode(part)
        if is_decoding or part.content_type.startswith(OPEN_INFERENCE_TYPE)
        else part.content
        for part in request.parts
    }


def request_headers(request: Request) -> dict[str, Any]:
    """Returns the request's headers, and each part's own under the part's name."""
    parts = {part.name: {"content-type": part.content_type} for part in request.parts}
    return {**request.headers, **parts}


def encode_output(output: Any) -> bytes:
    """Returns an answer's body: bytes as such, text as UTF-8, tensors saved, the rest as JSON."""
    if isinstance(output, bytes | bytearray):
        return bytes(output)
    try:
        if isinstance(output, str):
            return output.encode()
        if (saved := _save_tensor(output)) is not None:
            return saved
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
def _kind(content_type: str) -> tuple[str, str]:
    kind, _, parameters = content_type.partition(";")
    return kind.strip().lower(), parameters


def _decode(part: Part) -> Any:
    kind, parameters = _kind(part.content_type)
    if kind == OPEN_INFERENCE_TYPE and parameters.startswith("json="):
        return Inference.read(part.content, int(parameters.removeprefix("json=")))
    try:
        if kind == "application/json":
            return json.loads(part.content)
        if kind.startswith("text"):
            return part.content.decode()
    except (ValueError, RecursionError):
        log.warning("undecodable part=%r type=%r: the handler gets its bytes", part.name, kind)
    return part.content


def _save_tensor(output: Any) -> bytes | None:
    # A handler that returns a tensor has imported torch; an echo handler need not wait for it.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(output, torch.Tensor):
        return None
    buffer = io.BytesIO()
    # From the CPU, so that a client without this GPU can load it.
    torch.save(output.detach().cpu(), buffer)
    return buffer.getvalue()
