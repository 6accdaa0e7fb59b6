"""Requests of the Open Inference Protocol through a handler that knows nothing of it."""

import json

import pytest

from batching.protocol import OPEN_INFERENCE_TYPE, Part, Request
from tests.unit.workers.handling.batches import Handler, batch, body, error_of, runner


def inference(document, binary=b"", **headers):
    text = json.dumps(document).encode() if isinstance(document, dict) else document
    kind = f"{OPEN_INFERENCE_TYPE};json={len(text)}"
    return Request(headers, [Part("body", kind, text + binary)])


def described(name, data, datatype="INT64", shape=None, **parameters):
    found = {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}
    return {**found, "parameters": parameters} if parameters else found


def ask(answer, document, binary=b"", **settings):
    """The rows that the handler got, and the reply."""
    handler = Handler(answer)
    (reply,) = runner(handler, **settings).run(batch(inference(document, binary)))
    return handler.batches[0] if handler.batches else None, reply


def echo(rows, context):
    return [row["body"] for row in rows]


def test_single_input_is_the_body_and_has_its_name():
    # When
    rows, reply = ask(echo, {"id": "7", "inputs": [described("x", [1, 2])]})
    # Then
    assert rows == [{"x": [1, 2], "body": [1, 2]}]
    assert reply.headers == {"content-type": "application/json"}
    assert json.loads(reply.body) == {
        "model_name": "echo",
        "model_version": "1.0",
        "id": "7",
        "outputs": [{"name": "output", "datatype": "INT64", "shape": [2], "data": [1, 2]}],
    }


def test_binary_inputs_follow_the_json_in_their_order():
    # Given
    inputs = [
        {"name": "a", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
        described("b", [5]),
        {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}},
    ]
    # When
    rows, _ = ask(lambda rows, _: ["x"], {"inputs": inputs}, b"\x01\x02" + b"\x03\0\0\0cat")
    # Then
    assert rows == [{"a": [1, 2], "b": [5], "c": bytearray(b"cat")}]


def test_outputs_are_binary_where_they_are_wished_so():
    # Given
    document = {
        "inputs": [described("x", [1])],
        "outputs": [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}],
    }
    # When
    _, reply = ask(lambda rows, _: [{"a": [1, 2], "b": [0.5], "c": [3]}], document)
    # Then
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert json.loads(reply.body[:length])["outputs"] == [
        {"name": "a", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}},
        {"name": "b", "datatype": "FP64", "shape": [1], "data": [0.5]},
    ]
    assert reply.body[length:] == (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert reply.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("document", "binary", "words"),
    [
        (b"{", b"", "not JSON: Expecting property name"),
        (b"[" * 100_000, b"", "not JSON: maximum recursion depth"),
        ({"inputs": []}, b"", "no inputs"),
        ({"inputs": [7]}, b"", "no name"),
        ({"inputs": [described("x", [1], binary_data_size=9)]}, b"12345678", "cut off"),
        ({"inputs": [described("x", [1], binary_data_size=-1)]}, b"", "cut off"),
        ({"inputs": [described("x", [1, 2], shape=[3])]}, b"", "cannot have 2 values"),
    ],
    ids=str,
)
def test_bad_request_fails_alone_with_400(document, binary, words):
    # Given
    handler = Handler(lambda rows, _: ["fine"] * len(rows))
    # When
    bad, good = runner(handler).run(batch(inference(document, binary), body(b"x")))
    # Then
    status, kind, text = error_of(bad)
    assert (status, kind) == (400, "BadRequestException")
    assert words in text
    assert (good.status, good.body) == (200, b"fine")


def thin(name, datatype="UINT8"):
    """620 000 lists out of 20 kB; the limit is a million."""
    return described(name, [0] * 20_000, datatype, shape=[20_000] + [1] * 31)


def test_b18_inputs_share_one_limit_of_rows():
    # Given a batch of one request whose inputs are small enough one by one, and another request
    handler = Handler(lambda rows, _: ["fine"] * len(rows))
    requests = batch(
        inference({"inputs": [thin("a"), thin("b")]}), inference({"inputs": [thin("a")]})
    )
    # When
    bad, good = runner(handler).run(requests)
    # Then
    status, kind, text = error_of(bad)
    assert (status, kind) == (400, "BadRequestException")
    assert "at most 1000000 rows" in text
    assert good.status == 200


def test_other_rows_of_the_batch_stay_as_they_are():
    # Given
    handler = Handler(echo)
    requests = batch(inference({"inputs": [described("x", [1])]}), body(b"plain"))
    # When
    tensors, plain = runner(handler, decode_input_request=False).run(requests)
    # Then
    assert handler.batches[0] == [{"x": [1], "body": [1]}, {"body": bytearray(b"plain")}]
    assert json.loads(tensors.body)["outputs"][0]["data"] == [1]
    assert (plain.body, plain.headers) == (b"plain", {})


def test_client_cannot_name_the_type_of_the_server():
    # Given: without the parameter that the ingress adds
    request = Request({}, [Part("body", OPEN_INFERENCE_TYPE, b"{}")])
    handler = Handler(lambda rows, _: ["x"])
    # When
    runner(handler).run(batch(request))
    # Then
    assert handler.batches == [[{"body": bytearray(b"{}")}]]
