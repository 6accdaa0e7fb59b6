"""Envelopes around handlers, for batches of one and of many."""

import json

import pytest
from ts.torch_handler.request_envelope import ENVELOPES

from batching.settings.settings import BY_KEY
from tests.unit.workers.handling.batches import Handler, batch, body, error_of, runner


def ask(name, answer, *requests):
    handler = Handler(answer)
    replies = runner(handler, service_envelope=name).run(batch(*requests))
    return handler.batches, replies


def posted(document, **headers):
    return body(json.dumps(document).encode(), "application/json", **headers)


def doubled(instances, _context):
    return [instance * 2 for instance in instances]


def documents(replies):
    return [json.loads(reply.body) for reply in replies]


def test_body_envelope_gives_values_instead_of_rows():
    # When
    calls, replies = ask("body", lambda values, _: values, body(b"a"), posted([1]))
    # Then
    assert calls == [[bytearray(b"a"), [1]]]
    assert [reply.body for reply in replies] == [b"a", b"[\n  1\n]"]


@pytest.mark.parametrize("name", ["json", "kserve"])
def test_instances_of_a_batch_are_run_together_and_dealt_out_again(name):
    # When
    calls, replies = ask(
        name,
        doubled,
        posted({"instances": [1, 2]}),
        posted({"instances": []}),
        body(b'{"instances": [3]}'),
    )
    # Then
    assert calls == [[1, 2, 3]]
    assert documents(replies) == [
        {"predictions": [2, 4]},
        {"predictions": []},
        {"predictions": [6]},
    ]


@pytest.mark.parametrize("name", ["json", "kserve"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda instances, _: [sum(instances)],
        lambda instances, _: [sum(instances)] * (1 if instances in ([1, 2], [3]) else 4),
        lambda instances, _: [sum(instances)] if instances in ([1, 2], [3]) else (1, 2, 3),
    ],
    ids=["one for all", "too many", "no list"],
)
def test_handler_that_answers_otherwise_is_asked_request_by_request(name, answer):
    # When
    calls, replies = ask(name, answer, posted({"instances": [1, 2]}), posted({"instances": [3]}))
    # Then
    assert calls == [[1, 2, 3], [1, 2], [3]]
    assert documents(replies) == [{"predictions": [3]}, {"predictions": [3]}]


@pytest.mark.parametrize("name", ["json", "kserve", "kservev2"])
@pytest.mark.parametrize("bad", [b"{", b"[1]", b'{"instances": 7}', b'{"inputs": [{}]}'])
def test_request_that_is_no_envelope_fails_alone(name, bad):
    # Given
    good = {"instances": [1], "inputs": [tensor("x", [1])]}

    def answer(instances, _context):
        return ["fine" for _ in instances]

    # When
    _, (first, second) = ask(name, answer, body(bad, "application/json"), posted(good))
    # Then
    assert error_of(first)[:2] == (503, "InternalServerException")
    assert second.status == 200


def test_kserve_envelope_names_explanations():
    # When
    _, replies = ask(
        "kserve",
        doubled,
        posted({"instances": [1]}, explain="True"),
        posted({"instances": [2]}, explain="False"),
    )
    # Then
    assert documents(replies) == [{"explanations": [2]}, {"predictions": [4]}]


def tensor(name, data, datatype="FP32", shape=None):
    return {"name": name, "shape": shape or [len(data)], "datatype": datatype, "data": data}


@pytest.mark.parametrize(
    ("output", "datatype", "data"),
    [
        ([{"dog": [1, 2]}, {"cat": [3, 4]}], "BYTES", [{"dog": [1, 2]}, {"cat": [3, 4]}]),
        ({"dog": 1}, "BYTES", [{"dog": 1}]),
        ([["dog"], ["cat"]], "BYTES", ["dog", "cat"]),
        ([[1], [2, 3]], "BYTES", [[1], [2, 3]]),
    ],
    ids=str,
)
def test_kservev2_envelope_has_as_many_values_as_the_handlers_lists(output, datatype, data):
    # When
    _, replies = ask("kservev2", lambda *_: [output], posted({"inputs": [tensor("x", [1])]}))
    # Then
    [document] = documents(replies)
    assert document["outputs"] == [
        {"name": "x", "datatype": datatype, "data": data, "shape": [len(data)]}
    ]


def test_b18_kservev2_envelope_has_one_limit_of_rows_for_all_inputs():
    # Given two inputs of 620 000 lists each, out of 20 kB; the limit is a million
    thin = {"name": "a", "datatype": "UINT8", "shape": [20_000] + [1] * 31, "data": [0] * 20_000}
    # When
    calls, (reply,) = ask(
        "kservev2", lambda inputs, _: [[1]] * len(inputs), posted({"inputs": [thin, thin]})
    )
    # Then
    status, _, text = error_of(reply)
    assert (status, calls) == (400, [])
    assert "at most 1000000 rows" in text


def test_kservev2_envelope_keeps_the_ids_of_a_batch_apart():
    # Given
    def answer(inputs, _context):
        return [given["data"] for given in inputs]

    requests = [
        posted({"id": "mine", "inputs": [tensor("x", [1]), tensor("y", [2])]}),
        posted({"id": " ", "inputs": [tensor("z", [3])]}),
    ]
    # When
    calls, replies = ask("kservev2", answer, *requests)
    # Then
    assert len(calls) == 1
    found = [(doc["id"], [o["name"] for o in doc["outputs"]]) for doc in documents(replies)]
    assert found == [("mine", ["x", "y"]), ("id-1", ["z"])]


def test_setting_names_every_envelope_there_is():
    assert set(BY_KEY["service_envelope"].choices) == {"", *ENVELOPES}
