"""Answers requests about jobs over HTTP; both HTTP doors use it."""

import hashlib
import math
import re
from collections.abc import Mapping

from batching.errors import MethodNotAllowed, ServeError
from batching.models.spec import ModelSpec
from batching.protocol import Request
from batching.store.jobs.job_documents import job_document
from batching.store.jobs.job_records import Job, JobStatus
from ingress.http1.exchange import Answer
from ingress.jobs.job_errors import no_job
from ingress.jobs.job_events import JobEvents
from ingress.jobs.job_service import JobService
from ingress.jobs.preferences import Preferences, read_preferences
from ingress.torchserve.answers import (
    error_answer,
    json_answer,
    reply_answer,
    with_error_key,
)

JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(/result|/events)?")

# Roughly: how fast the jobs before one are done is not known here.
_JOBS_PER_S, _LONGEST_RETRY_S = 100, 10


class JobDoor:
    """Turns requests about jobs into answers; errors are answers too."""

    def __init__(self, service: JobService) -> None:
        self.service = service

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], base_url: str
    ) -> Answer | JobEvents:
        """Returns the answer to a request for `/jobs/...`; of events, one in pieces.

        Args:
            method: of HTTP.
            path: percent-decoded.
            headers: names in lower case.
            base_url: of the server as this client sees it, without a slash at the end.
        """
        try:
            found = JOB_PATH.fullmatch(path.rstrip("/"))
            if found is None:
                raise no_job(path.split("/")[2])
            job_id, part = found.groups()
            if method in {"GET", "HEAD"}:
                if part == "/events":
                    job = await self.service.find(job_id)
                    return JobEvents(self.service, job, headers, base_url)
                wait_s = read_preferences(headers.get("prefer", "")).wait_s
                job = await self.service.wait(job_id, wait_s, for_end=bool(part))
                if part:
                    return await self._result(job, base_url)
                return _look(job, headers, base_url)
            if method == "DELETE" and not part:
                return _look(await self.service.cancel(job_id), {}, base_url)  # never "unchanged"
            raise MethodNotAllowed("Requested method is not allowed, please refer to API document.")
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
    ) -> Answer:
        """Has a prediction become a job; returns that, or the ordinary answer if it comes in time.

        Args:
            spec: of the version that runs it.
            request: let go before the wait.
            headers: of the request, names in lower case.
            preferences: of its client.
            timeout_s: from now to its deadline; None: the usual one.
            base_url: of the server as this client sees it.
            is_open_inference: whether the client looks for the errors of that protocol.

        Raises:
            ServeError: it was refused, or there is no result.
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
        if preferences.wait_s and not job.status.is_final:
            job = await self.service.wait(job.job_id, preferences.wait_s, for_end=True)
        if job.status.is_final and preferences.wait_s:
            return await self._in_time(job, preferences)
        return _accepted(job, base_url, preferences, is_replayed=is_replayed)

    async def _in_time(self, job: Job, preferences: Preferences) -> Answer:
        """Returns the ordinary answer of a job that has finished while its client waited.

        Raises:
            ServeError: there is no result.
        """
        answer = await self._ended(job)
        if preferences.is_asked:
            answer.headers.append(("preference-applied", f"wait={preferences.wait_s:g}"))
        return answer

    async def _result(self, job: Job, base_url: str) -> Answer:
        """Returns the result, or 202 and the job while there is none."""
        if job.status.is_final:
            return await self._ended(job)
        answer = json_answer(job_document(job, base_url), 202)
        answer.headers.append(_retry_after(job))
        return answer

    async def _ended(self, job: Job) -> Answer:
        """Returns what the synchronous prediction would have been answered with."""
        reply = await self.service.result(job)
        answer = reply_answer(reply, job.job_id)
        return with_error_key(answer) if job.is_open_inference and reply.error_type else answer


def _accepted(job: Job, base_url: str, preferences: Preferences, *, is_replayed: bool) -> Answer:
    """Returns the answer to a request that has become a job."""
    answer = json_answer(job_document(job, base_url), 202)
    answer.headers.append(("location", f"{base_url}/jobs/{job.job_id}"))
    if preferences.is_asked:
        answer.headers.append(("preference-applied", "respond-async"))
    answer.headers.append(_retry_after(job))
    if is_replayed:
        answer.headers.append(("idempotency-replayed", "true"))
    return answer


def _look(job: Job, headers: Mapping[str, str], base_url: str) -> Answer:
    answer = json_answer(job_document(job, base_url))
    tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
    answer.headers.append(("etag", tag))
    if not job.status.is_final:
        answer.headers.append(_retry_after(job))
    if headers.get("if-none-match") == tag:
        return answer._replace(status=304, body=b"")
    return answer


def _retry_after(job: Job) -> tuple[str, str]:
    if job.status is not JobStatus.QUEUED or job.is_urgent:
        return "retry-after", "1"
    if job.position is None:
        return "retry-after", str(_LONGEST_RETRY_S)
    return "retry-after", str(max(1, math.ceil(job.position / _JOBS_PER_S)))
