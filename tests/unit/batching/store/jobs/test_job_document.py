"""What clients see of a job that failed: the text of an exception, never the body of an answer."""

from batching.models.spec import VersionKey
from batching.protocol import Reply
from batching.store.jobs.job_records import Job, JobStatus, job_document

JOB_ID = "0" * 32


def error_of(reply):
    result = b"".join(reply.to_wire(JOB_ID.encode()))
    job = Job(JOB_ID, VersionKey("m", "1.0"), JobStatus.FAILED, 0, 1000, result=result)
    return job_document(job, "http://localhost")["error"]


def test_error_has_the_text_of_the_handlers_exception():
    # Given what a worker makes of a PredictionException
    reply = Reply(418, b"too short", error_type="InternalServerException")
    # When / Then
    assert error_of(reply) == {
        "code": 418,
        "type": "InternalServerException",
        "message": "too short",
    }


def test_error_has_no_body_of_an_answer_with_such_a_status():
    # Given an answer that a handler returned with this status
    error = error_of(Reply(400, b"a secret of the client"))
    # When / Then
    assert error["code"] == 400
    assert "secret" not in error["message"]
