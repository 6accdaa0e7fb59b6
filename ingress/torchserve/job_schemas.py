"""Describes jobs and the answers about them, in the words of OpenAPI: docs/jobs.md."""

from batching.protocol import ClosedBy
from batching.store.jobs.job_records import JobStatus
from ingress.torchserve.schemas import (
    FLAG,
    HANDLERS_BYTES,
    NUMBER,
    TEXT,
    answer,
    component,
    list_of,
    one_of,
    record,
    refusals,
)

_TIME = {**TEXT, "format": "date-time"}
_URL = {**TEXT, "format": "uri"}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}

# What is not known yet is left out.
JOB_SCHEMA = record(
    *("id", "model", "version", "status", "created_at", "expires_at", "attempts"),
    *("result_url", "cancel_url"),
    id=TEXT,
    model=TEXT,
    version=TEXT,
    status=one_of(*JobStatus),
    created_at=_TIME,
    started_at=_TIME,
    finished_at=_TIME,
    expires_at=_TIME,
    attempts=NUMBER,
    position=NUMBER,
    durable=FLAG,
    batch=record(
        worker=TEXT, size=NUMBER, closed_by=one_of(*ClosedBy), queue_ms=NUMBER, run_ms=NUMBER
    ),
    error=record("code", "type", "message", code=NUMBER, type=TEXT, message=TEXT),
    progress=record("share", share=_SHARE, text=TEXT),
    result_url=_URL,
    cancel_url=_URL,
    webhook=record(
        *("url", "status", "attempts"),
        url=_URL,
        status=one_of("pending", "delivered", "failed", "gone"),
        attempts=NUMBER,
        last_error=TEXT,
    ),
)
_JOB = component("Job")
_RETRY_AFTER = {"Retry-After": (NUMBER, "In how many seconds to look again, until it has ended")}

ACCEPTED = answer(
    _JOB,
    "The prediction has become a job",
    headers={
        "Location": (_URL, "The job"),
        "Preference-Applied": (TEXT, "`respond-async`, where the client asked for it"),
        **_RETRY_AFTER,
        "Idempotency-Replayed": (
            one_of("true"),
            "The Idempotency-Key has been sent before; this is that request's job",
        ),
    },
)
JOB = answer(_JOB, headers={"ETag": (TEXT, "Of this answer, for If-None-Match"), **_RETRY_AFTER})
UNCHANGED = {"304": {"description": "Still as the client knows it"}}
UNFINISHED = {"202": answer(_JOB, "There is no result yet", headers=_RETRY_AFTER)}
QUEUED_AGAIN = answer(_JOB, "It waits again")
JOBS = answer(record("jobs", jobs=list_of(_JOB), next_cursor=TEXT))
COUNT = answer(record("jobs", jobs=NUMBER))
RESULT = {
    **HANDLERS_BYTES,
    "description": "What the synchronous prediction would have been answered with, errors too",
}
# Of a prediction, which is answered or becomes a job.
_IN_TIME = "`wait=5`, where the client asked for a job only after so long"
PREDICTED = {"Preference-Applied": {"schema": TEXT, "description": _IN_TIME}}
OF_PREDICTIONS = {"202": ACCEPTED, **refusals("400", "404", "422", "503")}
