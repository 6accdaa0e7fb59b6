import json

import pytest

from batching.errors import PayloadTooLarge, QueueFull
from batching.protocol import Reply
from ingress.http1.exchange import HttpAnswer
from ingress.torchserve.answers import (
    clean_headers,
    error_answer,
    json_bytes,
    reply_answer,
)

RID = "00000000-0000-4000-8000-000000000000"


def test_json_survives_a_lone_surrogate():
    assert json.loads(json_bytes({"a": "x\udcff"})) == {"a": "x?"}


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.0, "1"), (1.5, "2")])
def test_refusal_says_in_whole_seconds_when_to_retry(seconds, header):
    answer = error_answer(QueueFull("full", retry_after_s=seconds), RID)
    assert dict(answer.headers)["retry-after"] == header


@pytest.mark.parametrize("status", [-1, 0, 99, 100, 101, 199, 600, 1000])
def test_prediction_is_a_server_error_when_its_status_is_none(status):
    assert reply_answer(Reply(status, b"x"), RID).status == 500


def test_handler_headers_cannot_break_the_answer():
    # Given
    hostile = {
        "X-Ok": "a\tb",
        "X-Split": "a\r\nSet-Cookie: stolen=1",
        "X-Nul": "a\x00b",
        "X-Accent": "é日",
        "Bad Name": "x",
        "X-Bad\r\nEvil": "x",
        "": "x",
        "Content-Length": "9999",
        "Transfer-Encoding": "chunked",
        "CONNECTION": "upgrade",
        "x-content-type-options": "guess",
        "x-request-id": "forged",
    }
    # When
    kept = clean_headers(hostile)
    # Then
    assert kept == [
        ("X-Ok", "a\tb"),
        ("X-Split", "aSet-Cookie: stolen=1"),
        ("X-Nul", "ab"),
        ("X-Accent", "??"),
    ]


def test_body_over_the_limit_is_answered_as_by_torchserve():
    answer = error_answer(PayloadTooLarge("More than 9 bytes."))
    assert answer == HttpAnswer(413, [("x-ferry-reason", "payload_too_large")], b"")
