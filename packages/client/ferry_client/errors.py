"""Defines the errors that a client raises.

FerryError
├── ServerUnreachable     no server answers at this address, or the connection broke
├── WaitTimeout           the job has not finished in the time that the caller would wait
└── AnswerError           the server answered with an error: status, type and message
    ├── BadRequest        the server does not accept this request: 400, 405, 413, 415
    ├── Unauthorized      a token is missing or wrong: 401, 403
    ├── NotFound          no such model, version or job: 404
    ├── Conflict          409; 422: the idempotency key is another request's
    ├── ResultGone        the job was cancelled, or its result has been deleted: 410
    ├── Overloaded        too much is waiting, even after the retries: 429, 503 + Retry-After
    └── PredictionFailed  the handler or its worker failed, ran out of time, or does not run:
                          other 5xx
"""

import json
import re
from typing import Any

import httpx

# The type of a server's refusal where it asks for tokens, which TorchServe answers with 400.
_INVALID_KEY = "InvalidKeyException"
_OVERLOADED, _TOO_MANY = 503, 429
_TAG = re.compile("<[^>]*>")
_LONGEST_TITLE = 80
_TITLE = re.compile("<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)


class FerryError(Exception):
    """Anything that a client of this package raises about a server."""


class ServerUnreachable(FerryError):
    """No server answers, or the connection broke.

    `was_sent`: the server may have got the request. `may_pass`: trying again may help.
    """

    def __init__(self, message: str, *, was_sent: bool, may_pass: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.may_pass = may_pass


class WaitTimeout(FerryError, TimeoutError):
    """Says that the job has not finished in time. It goes on; wait again, or cancel it."""


class AnswerError(FerryError):
    """Says that the server refused; the message has its own words."""

    def __init__(self, status: int, error_type: str, message: str, *, job_id: str = "") -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status
        self.type = error_type
        self.message = message
        self.job_id = job_id


class BadRequest(AnswerError):
    """Says that the server does not accept this request."""


class Unauthorized(AnswerError):
    """A token is missing, wrong or expired."""


class NotFound(AnswerError):
    """There is no such model, version or job."""


class Conflict(AnswerError):
    """Says that a job's or model's state forbids it, or the idempotency key is another's."""


class ResultGone(AnswerError):
    """Says that the job was cancelled, or its result deleted."""


class Overloaded(AnswerError):
    """Says that the server had no room as long as the client tried."""


class PredictionFailed(AnswerError):
    """Says that the handler or its worker failed, or the time was over."""


_BY_STATUS = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: ResultGone,
    422: Conflict,
    _TOO_MANY: Overloaded,
}


def error_of(response: httpx.Response, job_id: str = "") -> AnswerError:
    """Returns the error for an answer with a status of 300 or more.

    `job_id` is of the job whose result it is.
    """
    status = response.status_code
    error_type, message = _complaint(response)
    kind: type[AnswerError]
    if error_type == _INVALID_KEY:
        kind = Unauthorized
    elif status in _BY_STATUS:
        kind = _BY_STATUS[status]
    elif status == _OVERLOADED and "retry-after" in response.headers:
        kind = Overloaded
    else:
        kind = PredictionFailed if response.is_server_error else BadRequest
    return kind(status, error_type, message, job_id=job_id)


def _complaint(response: httpx.Response) -> tuple[str, str]:
    try:
        record: Any = response.json()
    except ValueError:
        return "", text_of(response)
    if not isinstance(record, dict) or "message" not in record:
        return "", json.dumps(record)
    return str(record.get("type", "")), str(record["message"])


def is_page(response: httpx.Response) -> bool:
    """Returns whether the answer is a page for browsers, which no server of ours makes."""
    return response.content.lstrip()[:1] == b"<"


def text_of(response: httpx.Response) -> str:
    """Returns the text of an answer that is no JSON; for a page, its title or first words."""
    if not is_page(response):
        return response.text.strip() or response.reason_phrase
    title = _TITLE.search(response.text)
    shown = title[1] if title else _TAG.sub(" ", response.text)
    return f'a page, "{" ".join(shown.split())[:_LONGEST_TITLE]}"'
