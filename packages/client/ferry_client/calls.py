"""Makes HTTP requests of a caller's model and data."""

import json
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict
from urllib.parse import quote

Data: TypeAlias = bytes | str | Path | Mapping[str, Any] | Sequence[Any]
"""Bytes, text, a file, or anything that becomes JSON."""

# Longer than any prediction should take: a model's own limit is shorter.
ANSWER_TIMEOUT_S = 900.0
# For the way of an answer that comes at the end of the server's own limit.
MARGIN_S = 10.0


class Options(TypedDict, total=False):
    """Holds the options of a prediction.

    version: of the model; by default, its default version. content_type: of the data; by default,
    guessed. timeout_s: from the submit to the job's deadline. result_ttl_s: for how long the result
    is kept, 60 to 604800. priority: `high` waits among the synchronous requests.
    """

    version: str | None
    content_type: str | None
    timeout_s: float | None
    result_ttl_s: int | None
    priority: Literal["high", "normal"] | None


@dataclass(frozen=True, slots=True)
class Call:
    """Describes an HTTP request, the delay before it, and how long to wait for its answer."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    delay_s: float = 0.0


def prediction_call(model: str, data: Data, options: Options) -> Call:
    """Returns the request for a prediction, which waits for the answer.

    Raises:
        OSError: the data are a file that cannot be read.
        TypeError, ValueError: the data cannot be written as JSON.
    """
    segments = filter(None, ("predictions", model, options.get("version")))
    content, guessed = read_data(data)
    timeout_s = options.get("timeout_s")
    headers = {
        "content-type": options.get("content_type") or guessed,
        "x-request-timeout-ms": "" if timeout_s is None else str(int(timeout_s * 1000)),
        "x-result-ttl-s": str(options.get("result_ttl_s") or ""),
        "x-priority": options.get("priority") or "",
    }
    return Call(
        "POST",
        "/" + "/".join(quote(segment, safe=":") for segment in segments),
        {name: value for name, value in headers.items() if value},
        content,
        answer_timeout_s=ANSWER_TIMEOUT_S if timeout_s is None else timeout_s + MARGIN_S,
    )


def read_data(data: Data) -> tuple[bytes, str]:
    """Returns the bytes to send, and their content type; "" for none.

    Raises:
        OSError, TypeError, ValueError: as `prediction_call`.
    """
    match data:
        case bytes() | bytearray() | memoryview():
            return bytes(data), ""
        case str():
            return data.encode(), "text/plain; charset=utf-8"
        case Path():
            return data.read_bytes(), guessed_type(data.name)
    return json.dumps(data, allow_nan=False).encode(), "application/json"


def guessed_type(file_name: str) -> str:
    """Guesses the content type of text and JSON, which are decoded for handlers.

    Returns "" for everything else, which is sent without a type, as by `curl -T`.
    """
    kind = mimetypes.guess_type(file_name)[0] or ""
    return kind if kind == "application/json" or kind.startswith("text/") else ""
