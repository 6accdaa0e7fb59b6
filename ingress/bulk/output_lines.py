"""Writes the lines of output and error files, and finds out which ones are there."""

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from batching.protocol import Reply
from ingress.torchserve.answers import reply_answer

# Each line begins with its id, which ends in the number of the line that it answers.
_LINE_ID = re.compile(rb'{"id": "batch_req_[0-9a-f]+_(\d{1,12})"')
_READ_BYTES = 1024 * 1024
_LOWEST_FAILURE = 400


class LineSet:
    """A set of line numbers: one bit for each, as a file may have many millions."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self.count = 0

    def add(self, number: int) -> bool:
        """Adds the number; returns whether it is new."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1 - len(self._bits), 4096)))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        self.count += 1
        return True

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bits) and bool(self._bits[place] & (1 << (number & 7)))


class OutputFile:
    """A file of lines that only grows. Lines count when `sync` has returned."""

    def __init__(self, path: Path, done: LineSet) -> None:
        """Opens the file; cuts off a last line that is not whole, and adds the others to `done`.

        Raises:
            OSError: it cannot be opened.
        """
        self._stream: BinaryIO = path.open("a+b")
        path.chmod(0o600)
        self.is_new = False
        self.count = 0
        end = 0
        self._stream.seek(0)
        for number, end in _whole_lines(self._stream):  # noqa: B007 - its last value
            self.count += number is not None and done.add(number)
        self._stream.truncate(end)
        self._stream.seek(0, os.SEEK_END)

    def add(self, line: bytes) -> None:
        self._stream.write(line)
        self.count += 1
        self.is_new = True

    def sync(self) -> None:
        """Returns when all lines are on the disk."""
        if self.is_new:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self.is_new = False

    @property
    def size_bytes(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()


def _whole_lines(stream: BinaryIO) -> Iterator[tuple[int | None, int]]:
    """Yields of each whole line the number that it answers, or None, and where it ends."""
    end = 0
    while start := stream.readline(_READ_BYTES):
        piece = start
        while not piece.endswith(b"\n"):
            end += len(piece)
            piece = stream.readline(_READ_BYTES)
            if not piece:
                return  # half a line
        end += len(piece)
        found = _LINE_ID.match(start)
        yield (int(found[1]) if found else None), end


def answer_line(
    batch_id: str, number: int, custom_id: str, job_id: str, reply: Reply
) -> tuple[bytes, bool]:
    """Returns the line of an answer, and whether it is one of success."""
    answer = reply_answer(reply, job_id)
    content_type = {name.lower(): value for name, value in answer.headers}.get("content-type", "")
    response = {
        "status_code": answer.status,
        "request_id": job_id,
        **_body(bytes(answer.body), content_type),
    }
    line = _line(batch_id, number, custom_id, response, None)
    return line, answer.status < _LOWEST_FAILURE


def error_line(batch_id: str, number: int, custom_id: Any, code: str, message: str) -> bytes:
    """Returns the line of one that has no answer."""
    return _line(batch_id, number, custom_id, None, {"code": code, "message": message})


def _line(batch_id: str, number: int, custom_id: Any, response: Any, error: Any) -> bytes:
    document = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}_{number}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(document).encode() + b"\n"


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    """Returns JSON as it is, other text as a text, and anything else in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_b64": base64.b64encode(body).decode()}
    if not content_type or "json" in content_type:
        try:
            return {"body": json.loads(text, parse_constant=_refuse)}
        except (ValueError, RecursionError):
            pass
    return {"body": text}


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
