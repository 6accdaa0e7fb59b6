"""Answers requests about jobs over HTTP; both HTTP doors use it."""

import hashlib
import math
import re
from collections.abc import Mapping

from batching.errors import MethodNotAllowed, ServeError
from batching.request_ids import fresh_request_id
from batching.store.jobs.job_documents import job_document
from batching.store.jobs.job_records import Job, JobStatus
from ingress.http1.exchange import Answer
from ingress.jobs.job_errors import no_job
from ingress.jobs.job_events import JobEvents
from ingress.jobs.job_service import JobService
from ingress.jobs.preferences import Preferences, read_preferences
from ingress.torchserve.answers import error_answer, json_answer, reply_answer

JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(/result|/events)?")

# Roughly: how fast the jobs before one are done is not known here.
_JOBS_PER_S, _LONGEST_RETRY_S = 100, 10


class JobDoor:
    """Turns requests about jobs into answers; errors are answers too."""

    def __init__(self, service: JobService, scheme: str) -> None:
        self.service = service
        self._scheme = scheme

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> Answer | JobEvents:
        """Returns the answer to a request for `/jobs/...`; of events, one in pieces.

        Args:
            method: of HTTP.
            path: percent-decoded.
            headers: names in lower case.
        """
        try:
            found = JOB_PATH.fullmatch(path.rstrip("/"))
            if found is None:
                raise no_job(path.split("/")[2])
            job_id, part = found.groups()
            if method in {"GET", "HEAD"}:
                if part == "/events":
                    job = await self.service.find(job_id)
                    return JobEvents(self.service, job, headers, self._base_url(headers))
                wait_s = read_preferences(headers.get("prefer", "")).wait_s
                job = await self.service.wait(job_id, wait_s, for_end=bool(part))
                return await self.result(job, headers) if part else self._job(job, headers)
            if method == "DELETE" and not part:
                return self._job(await self.service.cancel(job_id), headers)
            raise MethodNotAllowed("Requested method is not allowed, please refer to API document.")
        except ServeError as error:
            return error_answer(error)

    def accepted(
        self, job: Job, headers: Mapping[str, str], preferences: Preferences, *, is_replayed: bool
    ) -> Answer:
        """Returns the answer to a request that has become a job."""
        document = job_document(job, self._base_url(headers))
        answer = json_answer(document, 202, fresh_request_id())
        answer.headers.append(("location", f"{self._base_url(headers)}/jobs/{job.job_id}"))
        if preferences.is_asked:
            answer.headers.append(("preference-applied", "respond-async"))
        answer.headers.append(_retry_after(job))
        if is_replayed:
            answer.headers.append(("idempotency-replayed", "true"))
        return answer

    async def in_time(self, job: Job, preferences: Preferences) -> Answer:
        """Returns the ordinary answer of a job that has finished while its client waited.

        Raises:
            ServeError: there is no result.
        """
        answer = reply_answer(await self.service.result(job), job.job_id)
        if preferences.is_asked:
            answer.headers.append(("preference-applied", f"wait={preferences.wait_s:g}"))
        return answer

    async def result(self, job: Job, headers: Mapping[str, str]) -> Answer:
        """Returns the result, or 202 and the job while there is none.

        Raises:
            ServeError: there will be none.
        """
        if not job.status.is_final:
            answer = json_answer(job_document(job, self._base_url(headers)), 202)
            answer.headers.append(_retry_after(job))
            return answer
        return reply_answer(await self.service.result(job), job.job_id)

    def _job(self, job: Job, headers: Mapping[str, str]) -> Answer:
        answer = json_answer(job_document(job, self._base_url(headers)))
        tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
        answer.headers.append(("etag", tag))
        if not job.status.is_final:
            answer.headers.append(_retry_after(job))
        if headers.get("if-none-match") == tag:
            return answer._replace(status=304, body=b"")
        return answer

    def _base_url(self, headers: Mapping[str, str]) -> str:
        return f"{self._scheme}://{headers.get('host', 'localhost')}"


def _retry_after(job: Job) -> tuple[str, str]:
    if job.status is not JobStatus.QUEUED or job.is_urgent:
        return "retry-after", "1"
    if job.position is None:
        return "retry-after", str(_LONGEST_RETRY_S)
    return "retry-after", str(max(1, math.ceil(job.position / _JOBS_PER_S)))
