"""Makes answers as TorchServe does: status, headers and bytes.

Source: TorchServe 0.12, `NettyUtils.sendHttpResponse` and `JsonUtils`.
The connection adds the `connection` header. An answer without a given request id gets a fresh one.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from batching import errors
from batching.models.spec import ModelSpec
from batching.protocol import Reply, ReplyChunk, fresh_request_id
from ingress.http1.exchange import HttpAnswer

_NO_CACHE_HEADERS = (
    ("Pragma", "no-cache"),
    ("Cache-Control", "no-cache; no-store, must-revalidate, private"),
    ("Expires", "Thu, 01 Jan 1970 00:00:00 UTC"),
)

JSON_CONTENT_TYPE = "application/json"

# Headers that a handler cannot set: the server writes them, or they control the connection.
_OWNED_NAMES = frozenset(
    (
        *("cache-control", "connection", "content-length", "date", "expires", "keep-alive"),
        *("pragma", "proxy-authenticate", "proxy-authorization", "proxy-connection", "server"),
        *("te", "trailer", "transfer-encoding", "upgrade", "x-content-type-options"),
        "x-request-id",
    )
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

# Below this range, a client would wait for another answer; above it, HTTP has no statuses.
_NO_STATUS = "Invalid model predict output"
_LOWEST_STATUS, _HIGHEST_STATUS = 200, 599


def json_bytes(document: Any) -> bytes:
    """Returns JSON as TorchServe prints it: two spaces, UTF-8 unescaped, one newline."""
    try:
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "replace")


def typed_answer(
    body: bytes, content_type: str, status: int = 200, request_id: str = ""
) -> HttpAnswer:
    own = [("x-request-id", request_id or fresh_request_id()), ("content-type", content_type)]
    return HttpAnswer(status, [*own, *_NO_CACHE_HEADERS], body)


def json_answer(document: Any, status: int = 200, request_id: str = "") -> HttpAnswer:
    return typed_answer(json_bytes(document), JSON_CONTENT_TYPE, status, request_id)


def status_answer(text: str, status: int = 200) -> HttpAnswer:
    return json_answer({"status": text}, status)


def error_answer(error: errors.ServeError, request_id: str = "") -> HttpAnswer:
    """Returns the answer for an error; TorchServe's own 413 has no body."""
    if type(error) is errors.PayloadTooLarge:
        return HttpAnswer(error.status, [("x-ferry-reason", error.reason)], b"")
    answer = _failure(error.status, error.type, error.message, error.reason, request_id)
    if error.retry_after_s is not None:
        # Whole seconds, rounded up: "0" would invite an immediate retry.
        answer.headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return answer


def how_to_get_a_worker(
    spec: ModelSpec, model_version: str | None, *, has_failed: bool = False
) -> str:
    """Returns the sentence that follows TorchServe's refusal without a worker.

    `model_version`: as in the request; `has_failed`: workers could not load the model.
    """
    if has_failed:
        return f"More: ferry models describe {spec.model_name}"
    if spec.min_worker > 0:
        return f"Its workers are starting, or could not: ferry models describe {spec.model_name}"
    version = "" if model_version is None else f" --version {model_version}"
    return f"Start one: ferry models scale {spec.model_name} --min-worker 1{version}"


def reply_answer(reply: Reply, request_id: str = "") -> HttpAnswer:
    """Returns the answer for a worker's reply, with the handler's headers cleaned.

    A prediction has no content type unless the handler sets one.
    """
    if not _LOWEST_STATUS <= reply.status <= _HIGHEST_STATUS:
        return error_answer(errors.InternalError(_NO_STATUS), request_id)
    if reply.error_type:
        message = bytes(reply.body).decode("utf-8", "replace")
        return _failure(reply.status, reply.error_type, message, reply.reason, request_id)
    headers = [("x-request-id", request_id or fresh_request_id()), *_NO_CACHE_HEADERS]
    if reply.headers:
        headers += clean_headers(reply.headers)
    return HttpAnswer(reply.status, headers, reply.body)


def stream_head(first: ReplyChunk, request_id: str) -> tuple[int, list[tuple[str, str]]]:
    """Returns status and headers of an answer in pieces, from the first piece.

    Raises:
        InternalError: a status that no answer can have.
    """
    if not _LOWEST_STATUS <= first.status <= _HIGHEST_STATUS:
        raise errors.InternalError(_NO_STATUS)
    headers = [("x-request-id", request_id), *_NO_CACHE_HEADERS, ("ts_stream_next", "true")]
    return first.status, headers + clean_headers(first.headers)


def with_error_key(answer: HttpAnswer) -> HttpAnswer:
    """Returns an error answer for clients of the Open Inference Protocol, which read `error`."""
    if not answer.body:
        return answer
    document = json.loads(bytes(answer.body))
    return answer._replace(body=json_bytes({**document, "error": document["message"]}))


def clean_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the handler's headers that may be sent: well-formed names, one line of ASCII each."""
    # ASCII only: clients disagree on what other bytes mean.
    return [
        (str(name), _CONTROLS.sub("", str(value)).encode("ascii", "replace").decode().strip())
        for name, value in headers.items()
        if _HEADER_NAME.fullmatch(str(name)) and str(name).lower() not in _OWNED_NAMES
    ]


def not_found() -> errors.NotFound:
    return errors.NotFound("Requested resource is not found, please refer to API document.")


def wrong_method() -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed("Requested method is not allowed, please refer to API document.")


def _failure(status: int, kind: str, message: str, reason: str, request_id: str) -> HttpAnswer:
    answer = json_answer({"code": status, "type": kind, "message": message}, status, request_id)
    if reason:
        # The JSON has TorchServe's three keys only, so the word for machines is a header.
        answer.headers.append(("x-ferry-reason", reason))
    return answer
