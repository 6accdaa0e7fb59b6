"""Talks to the server that predicts: submits each line as a job there, and fetches its answer.

A line is submitted with `Prefer: respond-async, wait=2`: it is a job from the start, waits in the
seats that requests leave free, and mostly needs this one HTTP request. After 2 s, the answer is
fetched by the job's URL. The Idempotency-Key is made of batch and line, so a line that is sent
again, even after a restart of this process, finds its job again.

The requests use `http.client`: httpx takes four times as long for each, which is more than the
server itself takes (ADR 0030).
"""

import contextlib
import http.client
import json
import logging
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from ferry_bulk.lines import BadLine, InputLine

log = logging.getLogger(__name__)

# A server that starts, or whose Redis was emptied, registers its models within this time.
UNKNOWN_S = 10.0
# How long one request waits for a job; only after that, a thread notices a cancelled batch.
_WAIT_S = 2
_ANSWER_TIMEOUT_S = 30.0
_AGAIN_S, _LONGEST_AGAIN_S = 0.1, 2.0
_REMIND_S = 30.0
_JOB_PATH = re.compile(r"/jobs/[0-9a-f]{32}$")


class ServerAnswer(NamedTuple):
    """Holds an answer of the server; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# What an answer means for its line. `result`: the model's answer, or a final refusal. `job`: the
# line waits or runs. `lost`: the server does not know its job any more. `key_reused`: the model's
# default version has changed since the line was first sent. `later`: the server kept nothing.
Kind: TypeAlias = Literal["result", "job", "lost", "key_reused", "unknown_model", "later"]


class ModelServer:
    """Calls a server's inference API, at a URL such as `http://host:8080`. Threads may share it.

    `read_token` returns the token for it, and is called again when the server refuses the token.
    """

    def __init__(self, url: str, read_token: Callable[[], str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not a URL like http://host:port: {url}")
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = partial(http.client.HTTPSConnection, context=ssl.create_default_context())
        self._connect = partial(kind, parts.hostname, parts.port, timeout=_ANSWER_TIMEOUT_S)
        self._prefix = parts.path.rstrip("/")
        self._read_token = read_token
        self._token = read_token()
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._unknown_since_s: dict[str, float] = {}  # models
        self._warned, self._silent_until_s = "", 0.0

    def close(self) -> None:
        """Closes the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def predict(
        self, line: InputLine, job_headers: Mapping[str, str], halted: threading.Event
    ) -> tuple[ServerAnswer | None, str]:
        """Returns the line's answer, however long the server is away; None when halted.

        Returns the path of its job as well; empty if one request was enough.

        Raises:
            BadLine: for UNKNOWN_S there was no model of this name and version.
        """
        job_path, delay_s = "", 0.0
        headers = {"content-type": line.content_type, **job_headers}
        headers["prefer"] = f"respond-async, wait={_WAIT_S}"
        while not halted.wait(delay_s):
            try:
                if job_path:
                    answer = self.send("GET", f"{job_path}/result", {"prefer": f"wait={_WAIT_S}"})
                else:
                    answer = self.send("POST", line.path, headers, line.body)
            except (OSError, http.client.HTTPException) as error:
                self._warn(f"the server does not answer: {error!r}")
                delay_s = min(2 * delay_s + _AGAIN_S, _LONGEST_AGAIN_S)
                continue
            kind = kind_of(answer, job_path)
            if kind == "result":
                self._unknown_since_s.pop(line.model_name, None)
                return answer, job_path
            if kind == "key_reused":
                headers["idempotency-key"] += "-again"
            # The answer to a GET of the job has no Location: its path stays.
            location = _JOB_PATH.search(answer.headers.get("location", ""))
            job_path = location[0] if location else "" if kind == "lost" else job_path
            delay_s = self._delay_s(kind, answer, line, delay_s)
        return None, job_path

    def cancel(self, job_path: str) -> None:
        """Cancels a job, if the server can be reached."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.send("DELETE", job_path)

    def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ServerAnswer:
        """Returns the answer to one request; raises OSError or HTTPException if there is none."""
        own_headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            # The connection that was used last is the likeliest to be open.
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            all_headers = {**own_headers, **(headers or {})}
            connection.request(method, self._prefix + path, body or None, all_headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        names = {name.lower(): value for name, value in response.getheaders()}
        return ServerAnswer(response.status, names, content)

    def _delay_s(self, kind: Kind, answer: ServerAnswer, line: InputLine, delay_s: float) -> float:
        """Returns how long the line's next request has to wait."""
        if kind == "unknown_model":
            now = time.monotonic()
            if now > self._unknown_since_s.setdefault(line.model_name, now) + UNKNOWN_S:
                reason = answer.headers.get("x-ferry-reason", "model_not_found")
                raise BadLine(reason, _message(answer), line.custom_id)
            return _LONGEST_AGAIN_S / 4
        if kind == "later":
            self._warn(f"lines wait: {_message(answer)}")
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                self._token = self._read_token()
            return min(2 * delay_s + _AGAIN_S, _LONGEST_AGAIN_S)
        return 0.0

    def _warn(self, why: str) -> None:
        """Logs what holds up lines, once for all of them, and again after _REMIND_S."""
        if why != self._warned or time.monotonic() > self._silent_until_s:
            self._warned, self._silent_until_s = why, time.monotonic() + _REMIND_S
            log.warning("%s", why)


def kind_of(answer: ServerAnswer, job_path: str) -> Kind:
    """Returns what the answer to a submit means; with a `job_path`, to a GET of its result."""
    status, headers = answer.status, answer.headers
    is_in_time = headers.get("preference-applied", "").startswith("wait=")
    # A handler may answer with any status; only its result has the job's id.
    if is_in_time or (job_path and job_path.endswith(headers.get("x-request-id", "-"))):
        return "result"
    if status == HTTPStatus.ACCEPTED and (job_path or "/jobs/" in headers.get("location", "")):
        return "job"
    if status == HTTPStatus.NOT_FOUND:
        return "lost" if job_path else "unknown_model"
    if headers.get("x-ferry-reason") == "idempotency_key_reused":
        return "key_reused"
    is_refused = status in {401, 403, 429} or b'"InvalidKeyException"' in answer.body
    return "later" if is_refused or status >= HTTPStatus.INTERNAL_SERVER_ERROR else "result"


def _message(answer: ServerAnswer) -> str:
    """Returns why the server refused, in its own words."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(answer.body)["message"])
    return f"HTTP {answer.status}"
