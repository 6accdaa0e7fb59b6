"""Answers requests about jobs over HTTP, under our server and under any WSGI server."""

import hashlib
import math
import re
from collections.abc import Mapping

from batching.errors import ServeError
from batching.models.spec import ModelSpec
from batching.protocol import Request
from batching.store.jobs.job_records import Job, JobStatus, job_document
from ingress.http1.exchange import HttpAnswer
from ingress.jobs.job_service import JobService, Preferences, no_job, read_preferences
from ingress.torchserve.answers import (
    error_answer,
    json_answer,
    reply_answer,
    with_error_key,
    wrong_method,
)

JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(/result)?")

# A guess: how fast the jobs before it are done is not known here.
_JOBS_PER_S, _LONGEST_RETRY_S = 100, 10


class JobAnswers:
    """Answers requests about jobs, and their errors."""

    def __init__(self, service: JobService) -> None:
        self.service = service

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], base_url: str
    ) -> HttpAnswer:
        """Returns the answer to a request for `/jobs/...`; the path is percent-decoded.

        Names of headers are in lower case; `base_url` is the server's URL as this client sees it,
        without a slash at the end.
        """
        try:
            match = JOB_PATH.fullmatch(path.rstrip("/"))
            if match is None:
                raise no_job(path.split("/")[2])
            job_id, is_result = match[1], match[2] is not None
            if method == "DELETE" and not is_result:
                job = await self.service.cancel(job_id)
                return _job_answer(job, {}, base_url)  # without headers: never "unchanged"
            if method not in {"GET", "HEAD"}:
                raise wrong_method()
            wait_s = read_preferences(headers.get("prefer", "")).wait_s
            job = await self.service.find(job_id)
            job = await self.service.wait(job, wait_s, for_end=is_result)
            if not is_result:
                return _job_answer(job, headers, base_url)
            return await self._ended(job) if job.status.is_final else _accepted(job, base_url)
        except ServeError as error:
            return error_answer(error)

    async def take(
        self,
        spec: ModelSpec,
        request: Request,
        headers: Mapping[str, str],
        preferences: Preferences,
        *,
        timeout_s: float | None,
        base_url: str,
        is_open_inference: bool,
    ) -> HttpAnswer:
        """Submits a prediction as a job; returns the job, or its result if that comes in time.

        Frees the request before it waits. `timeout_s` is from now to its deadline; None: the
        setting. `is_open_inference`: the client reads the errors of that protocol.

        Raises:
            ServeError: the job was refused, or there is no result.
        """
        job, is_replayed = await self.service.submit(
            spec,
            request,
            headers,
            timeout_s,
            is_open_inference=is_open_inference,
            base_url=base_url,
        )
        del request
        if preferences.wait_s:
            job = await self.service.wait(job, preferences.wait_s, for_end=True)
        is_over = job.status.is_final and preferences.wait_s
        answer = await self._ended(job) if is_over else _accepted(job, base_url)
        if preferences.is_asked:
            applied = f"wait={preferences.wait_s:g}" if is_over else "respond-async"
            answer.headers.append(("preference-applied", applied))
        if not is_over:
            answer.headers.append(("location", f"{base_url}/jobs/{job.job_id}"))
            if is_replayed:
                answer.headers.append(("idempotency-replayed", "true"))
        return answer

    async def _ended(self, job: Job) -> HttpAnswer:
        """Returns the job's result as the answer to the same prediction without a job."""
        reply = await self.service.result(job)
        answer = reply_answer(reply, job.job_id)
        return with_error_key(answer) if job.is_open_inference and reply.error_type else answer


def _accepted(job: Job, base_url: str) -> HttpAnswer:
    answer = json_answer(job_document(job, base_url), 202)
    answer.headers.append(_retry_after(job))
    return answer


def _job_answer(job: Job, headers: Mapping[str, str], base_url: str) -> HttpAnswer:
    answer = json_answer(job_document(job, base_url))
    tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
    answer.headers.append(("etag", tag))
    if not job.status.is_final:
        answer.headers.append(_retry_after(job))
    if headers.get("if-none-match") == tag:
        return answer._replace(status=304, body=b"")
    return answer


def _retry_after(job: Job) -> tuple[str, str]:
    seconds = 1
    if job.status is JobStatus.QUEUED and not job.is_urgent:
        far_s = _LONGEST_RETRY_S if job.position is None else job.position / _JOBS_PER_S
        seconds = max(1, math.ceil(far_s))
    return "retry-after", str(seconds)
