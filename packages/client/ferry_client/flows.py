"""Decides what to send, how to read the answer, and when to try again; sends nothing itself.

A flow is a generator: it yields each call, gets the answer sent or the `ServerUnreachable` thrown
in, and returns its result. So the blocking client and the other one share every decision.
"""

import logging
import math
import re
import time
import uuid
from collections.abc import Generator
from dataclasses import replace
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import httpx

from ferry_client.calls import MARGIN_S, Call, Data, Options, prediction_call
from ferry_client.errors import FerryError, ServerUnreachable, WaitTimeout, error_of
from ferry_client.jobs import JobState, Prediction

log = logging.getLogger(__name__)

T = TypeVar("T")
Flow: TypeAlias = Generator[Call, httpx.Response, T]

# How long one request waits for a job; proxies cut off silent requests after a minute.
LONGEST_WAIT_S = 30.0
_JOB_PATH = re.compile(r"/jobs/[0-9a-f]{32}$")
_NO_WORKER = "no_worker"
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0


def predict(model: str, data: Data, options: Options, patience_s: float) -> Flow[Prediction]:
    """Waits for the model's answer, on one connection unless the server makes a job of it."""
    call = prediction_call(model, data, options)
    response = yield from _persist(call, patience_s, is_repeatable=False)
    if _is_accepted(response):
        return (yield from result(_job(response).id, None, patience_s))
    return _prediction(response)


def submit(
    model: str, data: Data, options: Options, key: str | None, patience_s: float
) -> Flow[JobState]:
    """Submits the prediction as a job.

    Each submit has a key, so that it can be sent again when its answer was lost.
    """
    call = prediction_call(model, data, options)
    own = {"prefer": "respond-async", "idempotency-key": key or uuid.uuid4().hex}
    call = replace(call, headers={**call.headers, **own}, answer_timeout_s=LONGEST_WAIT_S)
    return _job((yield from _persist(call, patience_s)))


def look(job_id: str, patience_s: float, wait_s: float = 0.0) -> Flow[JobState]:
    """Asks for the job's state, now or when it has changed."""
    call = _waiting(Call("GET", _path(job_id)), wait_s)
    return _job((yield from _persist(call, patience_s)))


def wait(job_id: str, timeout_s: float | None, patience_s: float) -> Flow[JobState]:
    """Waits until the job has ended.

    Raises:
        WaitTimeout: it has not ended in time.
    """
    end_s = _end(timeout_s)
    while not (state := (yield from look(job_id, patience_s, _left(end_s)))).is_final:
        _check_time(job_id, end_s)
    return state


def result(job_id: str, timeout_s: float | None, patience_s: float) -> Flow[Prediction]:
    """Waits for the job's result.

    Raises:
        WaitTimeout: there is none in time.
    """
    end_s = _end(timeout_s)
    while True:
        call = _waiting(Call("GET", f"{_path(job_id)}/result"), _left(end_s))
        response = yield from _persist(call, patience_s, job_id=job_id)
        # Handlers may answer with 202, too; only a result has the job's own id.
        if response.status_code != httpx.codes.ACCEPTED or _is_result(response, job_id):
            return _prediction(response, job_id)
        _check_time(job_id, end_s)


def cancel(job_id: str, patience_s: float) -> Flow[JobState]:
    """Cancels the job, or deletes its result."""
    return _job((yield from _persist(Call("DELETE", _path(job_id)), patience_s)))


def _persist(
    call: Call, patience_s: float, *, is_repeatable: bool = True, job_id: str = ""
) -> Flow[httpx.Response]:
    """Sends the call until the answer is another than "try again later".

    Args:
        call: to send.
        patience_s: after this time, no other try begins.
        is_repeatable: sending the call twice does no harm, if only its answer was lost.
        job_id: of the job whose result is asked for, as that may itself be a 503.
    """
    end_s = time.monotonic() + patience_s
    delay_s = _FIRST_DELAY_S
    has_warned = False
    while True:
        try:
            response = yield call
        except ServerUnreachable as error:
            is_over = time.monotonic() + delay_s > end_s
            if is_over or not error.may_pass or (error.was_sent and not is_repeatable):
                raise
            call = replace(call, delay_s=delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        else:
            retry_s = None if _is_result(response, job_id) else _retry_after_s(response)
            if retry_s is None or time.monotonic() + retry_s > end_s:
                return response
            if not has_warned and response.headers.get("x-ferry-reason") == _NO_WORKER:
                # Without this, a program is silent for a minute when a model does not load.
                log.warning("%s; trying again for %g s", error_of(response).message, patience_s)
                has_warned = True
            call = replace(call, delay_s=retry_s)


def _retry_after_s(response: httpx.Response) -> float | None:
    """Returns after how many seconds to send a refused request again; None: not at all."""
    seconds = response.headers.get("retry-after", "")
    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or not seconds.isdecimal():
        return None
    return float(seconds)


def _is_accepted(response: httpx.Response) -> bool:
    """Returns whether the prediction has become a job, as slow models may demand."""
    location = response.headers.get("location", "")
    return response.status_code == httpx.codes.ACCEPTED and bool(_JOB_PATH.search(location))


def _is_result(response: httpx.Response, job_id: str) -> bool:
    return bool(job_id) and response.headers.get("x-request-id") == job_id


def _prediction(response: httpx.Response, job_id: str = "") -> Prediction:
    if not response.is_success:
        raise error_of(response, job_id)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Prediction(response.status_code, headers, response.content)


def _job(response: httpx.Response) -> JobState:
    if not response.is_success:
        raise error_of(response)
    try:
        return JobState.of(response.json())
    except (KeyError, TypeError, ValueError) as error:
        raise FerryError(f"{response.url} answered with something other than a job") from error


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _waiting(call: Call, wait_s: float) -> Call:
    if wait_s < 1:  # `Prefer` has whole seconds only: RFC 7240
        return replace(call, delay_s=min(wait_s, _FIRST_DELAY_S), answer_timeout_s=MARGIN_S)
    headers = {"prefer": f"wait={int(wait_s)}"}
    return replace(call, headers=headers, answer_timeout_s=wait_s + MARGIN_S)


def _end(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def _left(end_s: float) -> float:
    return min(LONGEST_WAIT_S, max(0.0, end_s - time.monotonic()))


def _check_time(job_id: str, end_s: float) -> None:
    if time.monotonic() >= end_s:
        raise WaitTimeout(f"job {job_id} has not finished in time")
