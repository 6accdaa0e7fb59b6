"""Reads and writes recorded requests, as JSON lines.

A line is `{"method": "POST", "path": "/predictions/m", "headers": {...}, "body": ...}`. A body is
text or JSON, or `body_base64`, or `body_file`: a path relative to the recording's folder.
"""

import base64
import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_METHOD = re.compile(r"[A-Z]{1,32}")
_TARGET = re.compile(r"/[!-~]*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BODIES = ("body", "body_base64", "body_file")
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
_KEYS = frozenset({"method", "path", "headers", *_BODIES})


class UnreadableRecording(ValueError):
    """A line of a recording is no request; the message says which."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """Holds one request; `path` includes the query. A body that is a path is read when sent.

    `number` is the line that it comes from.
    """

    number: int
    method: str
    path: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | Path = b""

    def content(self) -> bytes:
        """Returns the body.

        Raises:
            OSError: the body's file cannot be read.
        """
        return self.body.read_bytes() if isinstance(self.body, Path) else self.body


def read_requests(path: Path) -> Iterator[RecordedRequest]:
    """Yields the requests of a recording.

    Raises:
        UnreadableRecording: a request cannot be understood.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                if line.strip():
                    yield _request(number, _parsed(line), path.parent)
            except (ValueError, TypeError) as error:
                raise UnreadableRecording(f"{path}, line {number}: {error}") from error


class Recorder:
    """Writes requests, with their bodies, into a new file that only its owner can read.

    Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be made, or is there."""
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._stream = os.fdopen(number, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self.failure = ""

    def write(self, request: RecordedRequest) -> None:
        """Adds a request; does nothing once a write has failed."""
        headers = {name: value for name, value in request.headers if name.lower() not in _SECRET}
        record: dict[str, Any] = {"method": request.method, "path": request.path}
        content = request.content()
        try:
            body = {"body": content.decode()}
        except UnicodeDecodeError:
            body = {"body_base64": base64.b64encode(content).decode()}
        line = json.dumps({**record, "headers": headers, **body})
        with self._lock:
            try:
                if not self.failure:
                    self._stream.write(f"{line}\n")
                    self._stream.flush()
            except OSError as error:
                self.failure = str(error)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a failure has been noted
            self._stream.close()


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON ({error})") from error


def _request(number: int, record: Any, folder: Path) -> RecordedRequest:
    if not isinstance(record, dict):
        raise TypeError("not an object with method, path, headers and body")
    if unknown := sorted(record.keys() - _KEYS):
        raise ValueError(f"unknown: {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    method, target = record.get("method", "POST"), record.get("path")
    headers = record.get("headers") or {}
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise ValueError(f"method: {method!r} is none, write POST or the like")
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise ValueError("path: begins with / and has only ASCII characters, others as %..")
    if not isinstance(headers, dict):
        raise TypeError("headers: write an object")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"headers: {name!r} has characters that no header may have")
    return RecordedRequest(number, method, target, list(headers.items()), _body(record, folder))


def _body(record: Mapping[str, Any], folder: Path) -> bytes | Path:
    given = [key for key in _BODIES if key in record]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: write one of them")
    if not given:
        return b""
    value = record[given[0]]
    if given == ["body"]:
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    if not isinstance(value, str):
        raise TypeError(f"{given[0]}: write a text")
    if given == ["body_base64"]:
        return base64.b64decode(value, validate=True)
    if not (file := folder / value).is_file():
        raise ValueError(f"body_file: there is no file {file}")
    return file
