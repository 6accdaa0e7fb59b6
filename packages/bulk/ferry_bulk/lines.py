"""Reads the lines of an input file one at a time, and writes lines of output files."""

import base64
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import quote, unquote

LONGEST_BYTES = 64 * 1024 * 1024  # of a line, which is in memory as a whole
_SKIP_BYTES = 1024 * 1024
_URL = re.compile(r"/predictions/([^/\s]+)(?:/[^/\s]+)?/?")
# The beginning of each output line, with the number of the input line that it answers.
_LINE_ID = re.compile(rb'{"id": "batch_req_[0-9a-f]+_(\d{1,12})"')


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


# Made once, not for each line.
_to_json = json.JSONEncoder(ensure_ascii=False).encode
_read_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


class BadLine(Exception):
    """A line cannot be run: `code` and `message` say why; `custom_id` is the line's, if known."""

    def __init__(self, code: str, message: str, custom_id: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}
        self.custom_id = custom_id


# The number of a line, and the line; None if that has more than LONGEST_BYTES.
RawLine: TypeAlias = tuple[int, bytes | None]


@dataclass(frozen=True, slots=True)
class InputLine:
    """Describes the request of one line. `path` is percent-encoded."""

    number: int
    custom_id: str
    model_name: str
    path: str
    content_type: str
    body: bytes


def read_lines(path: Path) -> Iterator[RawLine]:
    """Yields the lines that are not empty, numbered from 0."""
    number = 0
    with path.open("rb") as stream:
        while text := stream.readline(LONGEST_BYTES):
            is_whole = len(text) < LONGEST_BYTES or text.endswith(b"\n")
            if not is_whole:
                while (rest := stream.readline(_SKIP_BYTES)) and not rest.endswith(b"\n"):
                    pass
            if not is_whole or text.strip():
                yield number, text if is_whole else None
                number += 1


def parse_line(raw: RawLine, endpoint: str) -> InputLine:
    """Reads a line, whose url must be the batch's endpoint or below it.

    Raises:
        BadLine: the line cannot be run.
    """
    number, text = raw
    if text is None:
        raise BadLine("line_too_long", f"The line has more than {LONGEST_BYTES} bytes.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid_json_line", "The line is not JSON.") from error
    if not isinstance(document, dict):
        raise BadLine("invalid_json_line", "The line is not a JSON object.")
    custom_id, url = document.get("custom_id"), document.get("url")
    path = unquote(url) if isinstance(url, str) else ""
    target = _URL.fullmatch(path)
    is_below = path == endpoint or path.startswith(f"{endpoint}/")
    for is_right, code, message in (
        (
            custom_id and isinstance(custom_id, str),
            "missing_custom_id",
            "The line has no custom_id that is a text.",
        ),
        (document.get("method") == "POST", "invalid_method", "method must be POST."),
        (target, "invalid_url", "url must be /predictions/NAME[/VERSION]."),
        (is_below, "mismatched_url", f"url is not of the endpoint {endpoint}."),
    ):
        if not is_right:
            raise BadLine(code, message, custom_id)
    try:
        content_type, body = _body_to_send(document)
    except ValueError as error:
        raise BadLine("invalid_body", str(error), custom_id) from error
    name = path.split("/")[2]
    return InputLine(number, str(custom_id), name, quote(path), content_type, body)


def _body_to_send(document: dict[str, Any]) -> tuple[str, bytes]:
    """Returns the content type and the bytes of the body.

    With a content type other than JSON, a text is the body itself; anything else is sent as JSON.

    Raises:
        ValueError: there is no body, or none that can be sent.
    """
    content_type = document.get("content_type", "")
    is_sendable = isinstance(content_type, str) and content_type.isascii()
    if not is_sendable or not content_type.isprintable():
        raise ValueError("content_type must be a text.")
    if "body_b64" in document:
        try:
            body = base64.b64decode(document["body_b64"], validate=True)
        except (ValueError, TypeError) as error:
            raise ValueError("body_b64 is not base64.") from error
        return content_type or "application/octet-stream", body
    if "body" not in document:
        raise ValueError("The line has neither body nor body_b64.")
    body_value = document["body"]
    if isinstance(body_value, str) and content_type and "json" not in content_type:
        return content_type, body_value.encode("utf-8", "replace")
    return content_type or "application/json", _to_json(body_value).encode("utf-8", "replace")


class OutputFile:
    """Appends lines to a file; once flushed, they survive the process, however it ends."""

    def __init__(self, path: Path, done: bytearray) -> None:
        """Opens the file, cuts off an incomplete last line, and marks the others in `done`."""
        self._stream: BinaryIO = path.open("a+b")
        path.chmod(0o600)
        self.count = end = 0
        self._stream.seek(0)
        for line in self._stream:
            if line.endswith(b"\n"):
                end += len(line)
                if line_id := _LINE_ID.match(line):
                    self.count += 1
                    done[int(line_id[1])] = 1
        self._stream.truncate(end)
        self._stream.seek(0, os.SEEK_END)

    def add(self, line: bytes) -> None:
        self._stream.write(line)
        self.count += 1

    def flush(self, *, to_disk: bool) -> None:
        """Returns when the lines survive this process; with `to_disk`, the machine."""
        self._stream.flush()
        if to_disk:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def output_line(batch_id: str, number: int, custom_id: Any, **outcome: Any) -> bytes:
    """Returns the line that answers the input's line of this number, by `response` or `error`."""
    document = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}_{number}",
        "custom_id": custom_id,
        "response": outcome.get("response"),
        "error": outcome.get("error"),
    }
    return json.dumps(document).encode() + b"\n"


def body_to_show(body: bytes, content_type: str) -> dict[str, Any]:
    """Returns a body for an output line: JSON unchanged, text as text, the rest in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_b64": base64.b64encode(body).decode()}
    if not content_type or "json" in content_type:
        try:
            return {"body": _read_json(text)}
        except (ValueError, RecursionError):
            pass
    return {"body": text}
