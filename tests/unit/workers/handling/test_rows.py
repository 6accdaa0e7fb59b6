"""What a handler is given, and what becomes of what it returns."""

import io
import math

import pytest
import torch

from batching.protocol import Part, Request
from tests.support import processor_time
from tests.unit.workers.handling.batches import Handler, batch, body, run_one, runner

DECODED = {
    "json": ("application/json", b'{"a": [1]}', {"a": [1]}),
    "json with charset": ("Application/JSON; charset=utf-8", b"[]", []),
    "json NaN": ("application/json", b"Infinity", math.inf),
    "broken json": ("application/json", b"{", bytearray(b"{")),
    "deep json": ("application/json", b"[" * 100_000, bytearray(b"[" * 100_000)),
    "other json": ("application/vnd.x+json", b"{}", bytearray(b"{}")),
    "text": ("text/plain; charset=utf-8", "é".encode(), "é"),
    "csv": ("text/csv", b"1,2", "1,2"),
    "broken text": ("text/plain", b"\xff", bytearray(b"\xff")),
    "image": ("image/jpeg", b"\xff\xd8", bytearray(b"\xff\xd8")),
    "none": ("", b"raw", bytearray(b"raw")),
    "empty": ("", b"", bytearray()),
}


@pytest.mark.parametrize(("kind", "content", "value"), DECODED.values(), ids=DECODED)
def test_row_is_decoded_by_content_type(kind, content, value):
    # Given
    handler = Handler(lambda rows, context: ["ok"])
    # When
    runner(handler).run(batch(body(content, kind)))
    # Then
    assert handler.batches == [[{"body": value}]]
    assert type(handler.batches[0][0]["body"]) is type(value)


def test_b19_type_of_a_body_that_cannot_be_decoded_is_quoted_in_the_log(caplog):
    # When
    run_one(lambda rows, context: ["ok"], request=body(b"\xff", "text/x\nforged\x1b[2J"))
    # Then
    quoted = r"'text/x\nforged\x1b[2j'"
    words = f"undecodable part='body' type={quoted}: the handler gets its bytes ('utf-8' codec"
    assert caplog.messages[0].startswith(words)


def test_row_has_one_value_per_part_and_the_last_of_equal_names():
    # Given
    handler = Handler(lambda rows, context: ["ok"])
    parts = [Part("data", "", b"1"), Part("data", "", b"2"), Part("n", "application/json", b"3")]
    # When
    runner(handler).run(batch(Request({}, parts)))
    # Then
    assert handler.batches == [[{"data": bytearray(b"2"), "n": 3}]]


ENCODED = {
    "bytes": (b"\x00\xff", b"\x00\xff"),
    "bytearray": (bytearray(b"x"), b"x"),
    "text": ("é", "é".encode()),
    "dict": ({"a": 1, "b": [True]}, b'{\n  "a": 1,\n  "b": [\n    true\n  ]\n}'),
    "none": (None, b"null"),
    "number": (1.5, b"1.5"),
    "not a number": (math.nan, b"NaN"),
}


@pytest.mark.parametrize(("output", "expected"), ENCODED.values(), ids=ENCODED)
def test_output_is_encoded_by_its_type(output, expected):
    # When
    reply = run_one(lambda rows, context: [output])
    # Then
    assert (reply.status, reply.phrase, reply.error_type) == (200, "", "")
    assert reply.body == expected
    assert reply.headers == {}


def test_tensor_output_can_be_loaded_again():
    reply = run_one(lambda rows, context: [torch.arange(3)])
    assert torch.load(io.BytesIO(reply.body), weights_only=True).tolist() == [0, 1, 2]


HOSTILE_JSON = {
    # Deeper than any Python takes: that of 3.14 takes what the thread's stack does.
    "deep": (b"[" * 200_000 + b"]" * 200_000, bytearray),
    "nan": (b'{"a": NaN, "b": -Infinity}', dict),
    "huge number": (b"1e999", float),
    "long number": (b"9" * 10_000, bytearray),
    "twice": (b'{"a": 1, "a": 2}', dict),
    "lone surrogate": (b'"\\ud800"', str),
    "long text": (b'"' + b"x" * 10_000_000 + b'"', str),
}


@pytest.mark.parametrize(("content", "kind"), HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_b03_hostile_json_costs_little_and_harms_no_other_row(content, kind):
    # Given a handler that gives back what it got
    handler = Handler(lambda rows, context: [row["body"] for row in rows])
    # When
    with processor_time(0.5):
        first, second = runner(handler, max_response_size_bytes=20_000_000).run(
            batch(body(content, "application/json"), body(b"fine"))
        )
    # Then: what cannot be decoded arrives as bytes, as in TorchServe
    assert type(handler.batches[0][0]["body"]) is kind
    assert first.status in (200, 503)  # 503: a lone surrogate has no UTF-8
    assert (second.status, second.body) == (200, b"fine")
