"""Holds a server's answers: predictions and jobs."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

JobStatus = Literal["queued", "running", "succeeded", "failed", "cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Holds a model's answer; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def request_id(self) -> str:
        """Returns the id in the server's logs; a job's own id if this is its result."""
        return self.headers.get("x-request-id", "")

    @property
    def content_type(self) -> str:
        """Returns the handler's content type, without parameters; empty if none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """Returns the answer as text; bytes that are not UTF-8 are replaced."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Returns the answer as Python values.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class JobError:
    """Says why a job failed, as the answer to the same prediction without a job would."""

    code: int
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Holds the handler's progress: a share from 0 to 1, and a text."""

    share: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """Holds a job as the server described it; None: not known then.

    `position` is how many jobs wait before it. `document` is the server's whole answer.
    """

    id: str
    model: str
    version: str
    status: JobStatus
    attempts: int
    position: int | None
    created_at: datetime.datetime | None
    started_at: datetime.datetime | None
    finished_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    error: JobError | None
    progress: JobProgress | None
    document: Mapping[str, Any]

    @property
    def is_final(self) -> bool:
        """Returns whether the job has ended."""
        return self.status not in {"queued", "running"}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Reads the job's JSON.

        Raises:
            KeyError, TypeError, ValueError: this is not a job.
        """
        error, progress = document.get("error"), document.get("progress")
        return cls(
            id=document["id"],
            model=document["model"],
            version=document["version"],
            status=document["status"],
            attempts=document.get("attempts", 0),
            position=document.get("position"),
            created_at=_time(document.get("created_at")),
            started_at=_time(document.get("started_at")),
            finished_at=_time(document.get("finished_at")),
            expires_at=_time(document.get("expires_at")),
            error=error and JobError(error["code"], error["type"], error["message"]),
            progress=progress and JobProgress(progress["share"], progress.get("text", "")),
            document=document,
        )


class JobView:
    """Shows a job's last known state."""

    def __init__(self, state: JobState) -> None:
        self._state = state

    @property
    def id(self) -> str:
        """Returns the job's id, by which any client finds it again."""
        return self._state.id

    @property
    def status(self) -> JobStatus:
        """Returns the job's status when the server was last asked."""
        return self._state.status

    @property
    def progress(self) -> JobProgress | None:
        """Returns the handler's progress when the server was last asked; None: it said none."""
        return self._state.progress

    @property
    def state(self) -> JobState:
        """Returns the job's whole state when the server was last asked."""
        return self._state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}>"


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)
