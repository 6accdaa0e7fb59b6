"""Compares what the OpenAPI document says of jobs with what the code reads and gives."""

import pytest
from openapi_schema_validator import OAS30Validator, oas30_format_checker

from batching.models.spec import VersionKey
from batching.protocol import BatchTiming, ClosedBy, Reply
from batching.store.jobs.job_records import (
    Job,
    JobStatus,
    Progress,
    Receiver,
    Webhook,
    job_document,
)
from batching.store.jobs.job_store import WebhookOutcome
from ingress.jobs.job_service import KEEP_RANGE_S, read_keep_s, read_urgency
from ingress.role import Role
from ingress.torchserve import payload
from ingress.torchserve.openapi import api_document

DOCUMENT = api_document(list(Role))
JOB_SCHEMA = DOCUMENT["components"]["schemas"]["Job"]
KEY, JOB_ID = VersionKey("m", "1.0"), "0" * 32


OPERATIONS = {
    operation["operationId"]: operation
    for methods in DOCUMENT["paths"].values()
    for operation in methods.values()
}


def described(operation_id):
    """The header parameters of an operation, by name in lower case."""
    parameters = OPERATIONS[operation_id]["parameters"]
    return {one["name"].lower(): one for one in parameters if one["in"] == "header"}


@pytest.mark.parametrize(
    "operation", ["predictions", "versionPredictions", "kserveV1Predict", "kserveV2Infer"]
)
def test_every_prediction_may_become_a_job(operation):
    names = set(described(operation)) - {payload.TENSOR_HEADER}
    assert names == set(described("predictions"))
    assert {"prefer", "x-priority", "x-result-ttl-s"} < names


def test_described_values_are_those_that_are_taken():
    headers = described("predictions")
    ttl = headers["x-result-ttl-s"]["schema"]
    assert (ttl["minimum"], ttl["maximum"]) == KEEP_RANGE_S
    assert read_keep_s({"x-result-ttl-s": str(ttl["maximum"])}) == ttl["maximum"]
    priorities = [
        read_urgency({"x-priority": one}) for one in headers["x-priority"]["schema"]["enum"]
    ]
    assert priorities == [False, True]


def test_described_words_are_those_that_are_given():
    properties = JOB_SCHEMA["properties"]
    assert properties["status"]["enum"] == list(JobStatus)
    assert properties["batch"]["properties"]["closed_by"]["enum"] == list(ClosedBy)


def job(status, **fields):
    usual = {"created_ms": 1_000, "expires_ms": 90_000, "attempts": 1, "is_durable": False}
    return job_document(Job(JOB_ID, KEY, status, **usual | fields), "http://localhost:8080")


def answered(status):
    timing = BatchTiming(batch_size=3, queue_us=4_000, handler_us=1_000, is_first=True)
    return b"".join(Reply(status, b"text", timing=timing).to_wire(JOB_ID.encode()))


def webhook(status):
    return Webhook(Receiver("https://receiver.example/", ""), status, 1, "said 500")


def problems_of(document):
    """Returns what keeps this from being the described job, without a field more."""
    schema = {"allOf": [strict(JOB_SCHEMA)], "components": strict(DOCUMENT["components"])}
    validator = OAS30Validator(schema, format_checker=oas30_format_checker)
    return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(document)]


def strict(schema):
    """Returns the schema, but a field that it does not name is an error."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    stricter = {name: strict(value) for name, value in schema.items()}
    if isinstance(stricter.get("properties"), dict) and "type" in stricter:
        stricter.setdefault("additionalProperties", False)
    return stricter


def test_job_has_the_fields_that_are_described():
    # Given jobs that have all there is between them
    documents = [
        job(JobStatus.QUEUED, position=7),
        job(JobStatus.RUNNING, started_ms=2_000, progress=Progress(0.4, "page 4 of 10")),
        job(JobStatus.SUCCEEDED, result=answered(200), webhook=webhook(WebhookOutcome.DELIVERED)),
        job(JobStatus.FAILED, result=answered(500), worker_id="9000", finished_ms=3_000),
        job(JobStatus.EXPIRED),
        job(JobStatus.CANCELLED, webhook=webhook(WebhookOutcome.PENDING)),
    ]
    # Then
    assert [problems_of(one) for one in documents] == [[]] * len(documents)
    assert fields_of(*documents) == fields_of_schema(JOB_SCHEMA)
    assert problems_of({**documents[0], "more": 1})


def fields_of(*documents):
    """All fields of these documents; of a field that is an object, its fields, too."""
    found = set()
    for document in documents:
        for name, one in document.items():
            inner = fields_of(one) if isinstance(one, dict) else set()
            found |= {name} | {f"{name}.{each}" for each in inner}
    return found


def fields_of_schema(schema):
    found = set()
    for name, one in schema.get("properties", {}).items():
        found |= {name} | {f"{name}.{each}" for each in fields_of_schema(one)}
    return found
