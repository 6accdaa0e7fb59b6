"""What counts as the same answer, and how differences are described."""

import json

import pytest

from ferry_moving.comparison import ComparedAnswer, Tolerance, Verdict, compare

JSON = "application/json"


def differences(old, new, tolerance=None, *, types=(JSON, JSON)):
    answers = [
        ComparedAnswer(200, kind, body if isinstance(body, bytes) else json.dumps(body).encode())
        for kind, body in zip(types, (old, new), strict=True)
    ]
    verdict, found = compare(*answers, tolerance or Tolerance())
    assert (verdict is Verdict.SAME) == (found == [])
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0.5, 0.50001),
        (1e-9, 7e-9),  # both next to nothing
        (1, 1.0),
        ({"a": 1, "b": [2.0]}, {"b": [2.00001], "a": 1}),
        (float("nan"), float("nan")),
        ([float("inf"), -float("inf")], [float("inf"), -float("inf")]),
        (b'{"a": 1}', b'{ "a":1 }\n'),
        (b"plain", b"plain"),
        ([], []),
        (b"", b""),
        (10**30, 10**30),
        ("\ud800", "\ud800"),
    ],
)
def test_same_answers(old, new):
    assert differences(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.5, 0.6, "$: 0.5 → 0.6"),
        ({"a": [{"p": 1.0}]}, {"a": [{"p": 2.5}]}, "$.a[0].p: 1 → 2.5"),
        (281, 282, "$: 281 → 282"),
        (10**6, 10**6 + 1, "$: 1000000 → 1000001"),  # within the tolerance, but classes and counts
        (10**400, 0.5, f"$: 1{'0' * 59}… → 0.5"),
        (float("nan"), 0.5, "$: nan → 0.5"),
        (0.5, float("inf"), "$: 0.5 → inf"),
        (True, 1, "$: a boolean → the number 1"),
        (True, False, "$: true → false"),
        (None, {}, "$: null → an object"),
        ("1", 1, "$: a text → the number 1"),
        ([1], {"a": 1}, "$: a list → an object"),
        ([1, 2], [1, 2, 3], "$: 2 → 3 elements"),
        ("a cat", "a car", "$: 5 → 5 characters, other from character 4 on"),
        ({"a": 1}, {}, "$.a: only the old answer has it"),
        ({}, {"tiger cat": 1}, '$["tiger cat"]: only the new answer has it'),
        ({"\x1b[2J": 1}, {"\x1b[2J": 2}, '$["\\u001b[2J"]: 1 → 2'),
        (b"plain", b"plane", "body: 5 → 5 bytes, other from byte 3 on"),
        (b"plain", b'{"a": 1}', "body: 5 → 8 bytes, other from byte 0 on"),
        (b"a" * 9000, b"a" * 8999 + b"b", "body: 9000 → 9000 bytes, other from byte 8999 on"),
        (b"[" * 5000, b"[" * 5001, "body: 5000 → 5001 bytes, other from byte 5000 on"),
        (b"9" * 5000, b"9" * 4999, "body: 5000 → 4999 bytes, other from byte 4999 on"),
    ],
)
def test_differences_are_described_without_texts(old, new, expected):
    assert differences(old, new) == [expected]


def test_first_differences_come_in_the_order_of_the_body_and_are_few():
    old = {"z": 1, "a": {"deep": [0.1, 0.2]}, "b": 3, "c": 4}
    new = {"z": 2, "a": {"deep": [0.3, 0.2]}, "b": 4, "c": 5}
    assert differences(old, new) == ["$.z: 1 → 2", "$.a.deep[0]: 0.1 → 0.3", "$.b: 3 → 4"]


def test_tolerance_is_relative_and_chosen():
    assert differences(100.0, 101.0, Tolerance(relative=0.02)) == []
    assert differences(100.0, 101.0, Tolerance(relative=0.005)) == ["$: 100 → 101"]
    assert differences(0.0, 0.001, Tolerance(absolute=0.01)) == []


def test_ignored_paths_may_be_anything():
    tolerance = Tolerance(ignored=("$[*].time", "$[*].meta"))
    old = [{"time": 1, "meta": {"host": "a"}, "timed": 1}]
    new = [{"time": 2, "meta": {"host": "b", "x": 1}, "timed": 2}]
    assert differences(old, new, tolerance) == ["$[0].timed: 1 → 2"]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("application/json", "Application/JSON; charset=utf-8"), []),
        (("text/plain", ""), ["content type: text/plain → none"]),
    ],
)
def test_content_types_are_compared_without_parameters(types, expected):
    assert differences({"a": 1}, {"a": 1}, types=types) == expected


def test_status_and_missing_answers_come_before_bodies():
    there = ComparedAnswer(200, JSON, b"1")
    assert compare(there, ComparedAnswer(503, "", b"2"), Tolerance()) == (
        Verdict.STATUS,
        ["status: 200 → 503"],
    )
    verdict, found = compare(there, ComparedAnswer(failure="refused"), Tolerance())
    assert (verdict, found) == (Verdict.MISSED, ["no new answer: refused"])
