"""The rows of the table of routes that are about jobs: docs/jobs.md."""

from typing import Any

from ingress.torchserve import job_schemas as jobs
from ingress.torchserve.request_headers import UNLESS_KNOWN, WAIT
from ingress.torchserve.route import Route
from ingress.torchserve.schemas import NUMBER, TEXT, refusals

_JOB = "/jobs/{job_id}"
_OF = {"model": TEXT, "status": TEXT}
_PAGED = {**_OF, "limit": NUMBER, "cursor": TEXT}


def _route(method: str, path: str, view: str, operation: str, **more: Any) -> Route:
    return Route(method, path, view, operation, better="not in TorchServe", **more)


# On both ports; the URLs in the answers begin with the address that was asked.
JOBS = (
    _route(
        "GET",
        _JOB,
        "answer_job",
        "getJob",
        headers=(WAIT, UNLESS_KNOWN),
        gives=jobs.JOB,
        others={**jobs.UNCHANGED, **refusals("404", "503")},
    ),
    _route(
        "DELETE", _JOB, "answer_job", "cancelJob", gives=jobs.JOB, others=refusals("404", "503")
    ),
    _route(
        "GET",
        f"{_JOB}/result",
        "answer_job",
        "getJobResult",
        headers=(WAIT,),
        gives=jobs.RESULT,
        others={**jobs.UNFINISHED, **refusals("404", "410", "503")},
    ),
)

# On the management port only.
LISTS_OF_JOBS = (
    _route(
        "GET",
        "/jobs",
        "list_jobs",
        "listJobs",
        query=_PAGED,
        gives=jobs.JOBS,
        others=refusals("400", "503"),
    ),
    _route(
        "DELETE",
        "/jobs",
        "cancel_jobs",
        "cancelJobs",
        query=_OF,
        gives=jobs.COUNT,
        others=refusals("400", "503"),
    ),
    _route(
        "POST",
        "/jobs/retry",
        "retry_jobs",
        "retryJobs",
        query=_OF,
        gives=jobs.COUNT,
        others=refusals("400", "503"),
    ),
    _route(
        "POST",
        f"{_JOB}/retry",
        "retry_job",
        "retryJob",
        gives=jobs.QUEUED_AGAIN,
        codes=("202",),
        others=refusals("404", "409", "503"),
    ),
)
