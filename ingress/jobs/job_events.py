"""Tells a client of each change of a job while it listens, as server-sent events.

    event     id                           data
    status    STATUS-ATTEMPTS              the job
    progress  running-ATTEMPTS[-BYTES]     its progress
    piece     running-ATTEMPTS-BYTES       a piece of its answer: the offset of its first byte, and
                                           text, or base64 where it is not UTF-8

BYTES are how many of the answer this listener has heard by then.
"""

import base64
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Self

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.jobs.job_documents import job_document, progress_document
from batching.store.jobs.job_records import Job, JobStatus, Progress
from ingress.jobs.job_service import JobService

# Proxies close connections on which nothing moves.
LONGEST_SILENCE_S = 15.0

_HEARD = re.compile(r"([a-z]+)-([0-9]{1,6})(?:-([0-9]{1,15}))?")
_CONTINUES = range(0x80, 0xC0)  # the bytes of a character in UTF-8, but for the first one


class JobEvents:
    """Status, headers, and pieces to iterate over once, as of an answer in pieces."""

    status = 200

    def __init__(
        self, service: JobService, job: Job, headers: Mapping[str, str], base_url: str
    ) -> None:
        self.headers = [("content-type", "text/event-stream"), ("cache-control", "no-store")]
        self._service = service
        self._job = job
        found = _HEARD.fullmatch(headers.get("last-event-id", ""))
        status, attempts, heard_bytes = found.groups("0") if found else ("", "-1", "0")
        self._heard, self._heard_bytes = (status, int(attempts)), int(heard_bytes)
        self._progress: Progress | None = None
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
        # One who comes after the end hears of that only.
        is_late = job.status.is_final and not self._heard[0]
        while True:
            for event in await self._news(job, is_late=is_late) or [b": still so\n\n"]:
                yield event
            if job.status.is_final:
                return
            job = await self._service.wait(
                job.job_id, LONGEST_SILENCE_S, before=job, mark=_all_of_it
            )

    async def _news(self, job: Job, *, is_late: bool) -> list[bytes]:
        """Returns what this listener has not heard; the end of the answer is before its status."""
        is_new = (job.status, job.attempts) != self._heard
        if job.status.is_final:
            if not is_new:
                return []
            pieces = [] if is_late else await self._pieces_of(job)
            return [*pieces, self._status(job)]
        events = []
        if is_new:
            self._heard, self._heard_bytes = (job.status, job.attempts), 0
            self._progress = job.progress
            events.append(self._status(job))
        events += await self._pieces_of(job)
        if job.progress is not None and job.progress != self._progress:
            self._progress = job.progress
            events.append(_event(self._id(job), "progress", progress_document(job.progress)))
        return events

    async def _pieces_of(self, job: Job) -> list[bytes]:
        events = []
        for offset, piece in await self._service.pieces(job, self._heard_bytes):
            self._heard_bytes = offset
            for part in _parts(piece):
                content = {"offset": self._heard_bytes} | _text_or_base64(part)
                self._heard_bytes += len(part)
                events.append(_event(self._id(job), "piece", content))
        return events

    def _status(self, job: Job) -> bytes:
        return _event(f"{job.status}-{job.attempts}", "status", job_document(job, self._base_url))

    def _id(self, job: Job) -> str:
        heard = f"-{self._heard_bytes}" if self._heard_bytes else ""
        return f"{JobStatus.RUNNING}-{job.attempts}{heard}"


def _all_of_it(job: Job) -> object:
    return job.status, job.attempts, job.progress, job.piece_bytes


def _event(name: str, kind: str, content: Mapping[str, Any]) -> bytes:
    return f"id: {name}\nevent: {kind}\ndata: {json.dumps(content)}\n\n".encode()


def _text_or_base64(part: bytes) -> dict[str, str]:
    try:
        return {"text": part.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(part).decode()}


def _parts(piece: bytes) -> Iterator[bytes]:
    """Cuts a piece into parts that are not large, and not within a character."""
    start = 0
    while start < len(piece):
        end = start + INLINE_LIMIT_BYTES
        while start + INLINE_LIMIT_BYTES - 3 < end < len(piece) and piece[end] in _CONTINUES:
            end -= 1
        yield piece[start:end]
        start = end
