"""Reads the lines of an input file, one at a time, and makes requests of them."""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from batching.errors import BadRequest
from batching.protocol import Request
from ingress.torchserve.payload import read_request
from ingress.torchserve.prediction_paths import parse_prediction_path

# Base64 makes four bytes of three; the rest of a line is its names.
_ROOM_BYTES = 64 * 1024
_SKIP_BYTES = 1024 * 1024


class BadLine(Exception):
    """Says why a line cannot be run; `code` is for machines, `custom_id` what is known of it."""

    def __init__(self, code: str, message: str, custom_id: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class InputLine:
    """Holds what one line asks for. `model_version` is None where the default one is meant."""

    custom_id: str
    model_name: str
    model_version: str | None
    request: Request


class RawLine(NamedTuple):
    """One line as it is in the file; `text` is None if it is too long."""

    number: int
    offset_bytes: int
    text: bytes | None


def read_lines(path: Path, max_body_bytes: int) -> Iterator[RawLine]:
    """Yields each line that is not empty. They are numbered from 0; empty ones have no number.

    Raises:
        OSError: the file cannot be read.
    """
    number = offset_bytes = 0
    with path.open("rb") as stream:
        while line := stream.readline(_longest_bytes(max_body_bytes)):
            size_bytes, text = _whole_line(stream, line, max_body_bytes)
            if text is None or text.strip():
                yield RawLine(number, offset_bytes, text)
                number += 1
            offset_bytes += size_bytes


def count_lines(path: Path, max_body_bytes: int) -> int:
    """Returns how many lines are not empty."""
    return sum(1 for _ in read_lines(path, max_body_bytes))


def line_at(path: Path, number: int, offset_bytes: int, max_body_bytes: int) -> RawLine:
    """Returns the line that begins there.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        stream.seek(offset_bytes)
        line = stream.readline(_longest_bytes(max_body_bytes))
        return RawLine(number, offset_bytes, _whole_line(stream, line, max_body_bytes)[1])


def _longest_bytes(max_body_bytes: int) -> int:
    return max_body_bytes // 3 * 4 + _ROOM_BYTES


def _whole_line(stream: BinaryIO, line: bytes, max_body_bytes: int) -> tuple[int, bytes | None]:
    """Reads to the line's end; returns its size, and None in place of one that is too long."""
    if len(line) < _longest_bytes(max_body_bytes) or line.endswith(b"\n"):
        return len(line), line
    size_bytes = len(line)
    while rest := stream.readline(_SKIP_BYTES):
        size_bytes += len(rest)
        if rest.endswith(b"\n"):
            break
    return size_bytes, None


def custom_id_of(line: bytes | None) -> Any:
    """Returns the custom_id of any line; None where there is none."""
    try:
        document = json.loads(line or b"")
    except (ValueError, RecursionError):
        return None
    return document.get("custom_id") if isinstance(document, dict) else None


def parse_line(line: bytes | None, endpoint: str, max_body_bytes: int) -> InputLine:
    """Returns what the line asks for.

    Args:
        line: JSON; None: too long to be read.
        endpoint: of the batch; the line's url must be this or below it.
        max_body_bytes: of the request.

    Raises:
        BadLine: it cannot be run.
    """
    if line is None:
        raise BadLine("line_too_long", "The line is longer than max_request_size allows.")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid_json_line", "The line is not JSON.") from error
    if not isinstance(document, dict):
        raise BadLine("invalid_json_line", "The line is not a JSON object.")
    custom_id = document.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine("missing_custom_id", "The line has no custom_id that is a text.", custom_id)
    if document.get("method") != "POST":
        raise BadLine("invalid_method", "method must be POST.", custom_id)
    try:
        return _asked(custom_id, document, endpoint, max_body_bytes)
    except BadRequest as error:
        raise BadLine("invalid_body", error.message, custom_id) from error


def _asked(
    custom_id: str, document: dict[str, Any], endpoint: str, max_body_bytes: int
) -> InputLine:
    url = document.get("url")
    path = unquote(url) if isinstance(url, str) else ""
    target = parse_prediction_path(path)
    if not path.startswith("/predictions/") or target is None:
        raise BadLine("invalid_url", "url must be /predictions/NAME[/VERSION].", custom_id)
    if path != endpoint and not path.startswith(f"{endpoint}/"):
        raise BadLine("mismatched_url", f"url is not of the endpoint {endpoint}.", custom_id)
    content_type, body = _body(document)
    if len(body) > max_body_bytes:
        raise BadRequest(f"The body has more than {max_body_bytes} bytes.")
    headers = {"content-type": content_type} if content_type else {}
    request = read_request(target, headers, body)
    return InputLine(custom_id, target.model_name, target.model_version, request)


def _body(document: dict[str, Any]) -> tuple[str, bytes]:
    """Returns the content type and the bytes of the body.

    A text of another type than JSON is the body itself; anything else is its JSON.
    """
    content_type = document.get("content_type", "")
    if not isinstance(content_type, str) or not content_type.isprintable():
        raise BadRequest("content_type must be a text.")
    if "body_b64" in document:
        try:
            body = base64.b64decode(document["body_b64"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise BadRequest("body_b64 is not base64.") from error
        return content_type or "application/octet-stream", body
    if "body" not in document:
        raise BadRequest("The line has neither body nor body_b64.")
    body_value = document["body"]
    if isinstance(body_value, str) and content_type and "json" not in content_type:
        return content_type, body_value.encode("utf-8", "replace")
    text = json.dumps(body_value, ensure_ascii=False)
    return content_type or "application/json", text.encode("utf-8", "replace")
