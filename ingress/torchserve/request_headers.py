"""Describes the request headers that the server reads itself; all others are the handler's.

A test compares these names and ranges with what `ingress/jobs/` and `payload.py` read.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ingress.torchserve.schemas import NUMBER, TEXT, one_of


class RequestHeader(NamedTuple):
    """One header of requests; none of them is required."""

    name: str
    schema: Mapping[str, Any]
    about: str


WAIT = RequestHeader(
    "Prefer",
    TEXT,
    "RFC 7240. `wait=30`: the answer comes when the job's status changes, or after 30 s. "
    "At most 60 s.",
)
UNLESS_KNOWN = RequestHeader(
    "If-None-Match", TEXT, "The `ETag` of an earlier answer; 304 while it is still the same."
)
TENSOR_BYTES = RequestHeader(
    "Inference-Header-Content-Length",
    {**NUMBER, "minimum": 0},
    "How many bytes of the body are JSON; the tensors that follow are binary.",
)
# Of a prediction that may become a job: docs/jobs.md.
SUBMIT = (
    RequestHeader(
        "Prefer",
        TEXT,
        "RFC 7240. `respond-async`: the prediction becomes a job. `respond-async, wait=5`: only if "
        "there is no answer within 5 s. At most 60 s.",
    ),
    RequestHeader(
        "X-Request-Timeout-Ms",
        {**NUMBER, "format": "int64", "minimum": 1},
        "How long the prediction may take; of a job, from now to the start of its last attempt.",
    ),
    RequestHeader(
        "X-Result-Ttl-S",
        {**NUMBER, "minimum": 60, "maximum": 604_800},
        "For how long the job and its result are kept when it has ended.",
    ),
    RequestHeader(
        "X-Priority", one_of("normal", "high"), "`high`: the job waits among the requests."
    ),
    RequestHeader(
        "Idempotency-Key",
        {**TEXT, "minLength": 1},
        "1 to 255 printable characters without spaces. Sent again with the same request, it gives "
        "the first one's job; with another one, 422.",
    ),
    RequestHeader("Webhook-Url", {**TEXT, "format": "uri"}, "Whom to tell when the job has ended."),
    RequestHeader(
        "Webhook-Events",
        TEXT,
        "`completed`, or `started,completed`: of what the receiver is to be told.",
    ),
    RequestHeader(
        "Webhook-Include",
        one_of("result"),
        "`result`: the receiver is sent the result as well, if that is small.",
    ),
)
