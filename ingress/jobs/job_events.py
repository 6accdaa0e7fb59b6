"""Tells a client of each change of a job while it listens, as server-sent events."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Self

from batching.store.jobs.job_documents import job_document
from batching.store.jobs.job_records import Job
from ingress.jobs.job_service import JobService

# Proxies close connections on which nothing moves.
LONGEST_SILENCE_S = 15.0


class JobEvents:
    """Status, headers, and pieces to iterate over once, as of an answer in pieces."""

    status = 200

    def __init__(
        self, service: JobService, job: Job, headers: Mapping[str, str], base_url: str
    ) -> None:
        self.headers = [("content-type", "text/event-stream"), ("cache-control", "no-store")]
        self._service = service
        self._job = job
        self._seen = headers.get("last-event-id", "")
        self._base_url = base_url
        self._pieces = self._tell()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next event, or a comment that keeps the connection.

        Raises:
            ServeError: the job has gone, or Redis does not answer.
        """
        return await anext(self._pieces)

    def need_no_pieces(self) -> None:
        """Does nothing: nobody counts these answers."""

    async def close(self) -> None:
        """Ends the listening."""
        await self._pieces.aclose()

    async def _tell(self) -> AsyncGenerator[bytes]:
        job = self._job
        while True:
            mark = f"{job.status}-{job.attempts}"
            if mark == self._seen:
                yield b": still so\n\n"
            else:
                self._seen = mark
                data = json.dumps(job_document(job, self._base_url))
                yield f"id: {mark}\nevent: status\ndata: {data}\n\n".encode()
            if job.status.is_final:
                return
            job = await self._service.wait(job.job_id, LONGEST_SILENCE_S, before=job)
