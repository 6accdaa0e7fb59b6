"""Lines of input files: what runs, and why others do not."""

import base64
import json

import pytest

from ingress.bulk.input_lines import BadLine, custom_id_of, line_at, parse_line, read_lines

GOOD = {"custom_id": "a", "method": "POST", "url": "/predictions/m", "body": {"x": 1}}


def parsed(endpoint="/predictions", **changes):
    document = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return parse_line(json.dumps(document).encode(), endpoint, 1000)


@pytest.mark.parametrize(
    ("changes", "content_type", "content"),
    [
        ({}, "application/json", b'{"x": 1}'),
        ({"body": "text"}, "application/json", b'"text"'),
        ({"body": "text", "content_type": "text/plain"}, "text/plain", b"text"),
        ({"body": [1, None]}, "application/json", b"[1, null]"),
        ({"body": "\u00e9"}, "application/json", '"\u00e9"'.encode()),
        (
            {"body": None, "body_b64": base64.b64encode(b"\xff\x00").decode()},
            "application/octet-stream",
            b"\xff\x00",
        ),
    ],
)
def test_line_becomes_a_request(changes, content_type, content):
    line = parsed(**changes)
    assert (line.custom_id, line.model_name, line.model_version) == ("a", "m", None)
    [part] = line.request.parts
    assert bytes(part.content) == content
    assert line.request.headers["content-type"] == content_type


def test_line_may_name_a_version():
    assert parsed(url="/predictions/m/2.0").model_version == "2.0"
    assert parsed("/predictions/m", url="/predictions/m/2.0").model_version == "2.0"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (None, "line_too_long"),
        (b"{", "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (b"[" * 100_000, "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b"{}", "missing_custom_id"),
        (b'{"custom_id": 7}', "missing_custom_id"),
        (b'{"custom_id": ""}', "missing_custom_id"),
    ],
)
def test_bad_line_is_named(line, code):
    with pytest.raises(BadLine) as told:
        parse_line(line, "/predictions", 1000)
    assert told.value.code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method": "GET"}, "invalid_method"),
        ({"method": None}, "invalid_method"),
        ({"url": None}, "invalid_url"),
        ({"url": 7}, "invalid_url"),
        ({"url": "/models/m"}, "invalid_url"),
        ({"url": "/v2/models/m/infer"}, "invalid_url"),
        ({"body": None}, "invalid_body"),
        ({"body": None, "body_b64": "no base64"}, "invalid_body"),
        ({"body": None, "body_b64": 7}, "invalid_body"),
        ({"content_type": 7}, "invalid_body"),
        ({"content_type": "a\nb"}, "invalid_body"),
        ({"body": "x" * 1000}, "invalid_body"),
    ],
)
def test_bad_line_keeps_its_custom_id(changes, code):
    with pytest.raises(BadLine) as told:
        parsed(**changes)
    assert (told.value.code, told.value.custom_id) == (code, "a")


def test_url_must_be_of_the_endpoint():
    with pytest.raises(BadLine) as told:
        parsed("/predictions/m", url="/predictions/mm")
    assert told.value.code == "mismatched_url"


def test_lines_are_numbered_without_empty_ones_and_long_ones_are_skipped(tmp_path):
    # Given
    path = tmp_path / "in.jsonl"
    long = b"x" * 3_000_000
    path.write_bytes(b"one\n\n  \n" + long + b"\ntwo\n" + b"last")
    # When / Then
    found = list(read_lines(path, max_body_bytes=1000))
    expected = [(0, b"one\n"), (1, None), (2, b"two\n"), (3, b"last")]
    assert [(line.number, line.text) for line in found] == expected
    # And each is found again where it begins
    assert [line_at(path, one.number, one.offset_bytes, 1000) for one in found] == found


def test_custom_id_of_any_line():
    assert custom_id_of(b'{"custom_id": "a", "method": 7}') == "a"
    assert [custom_id_of(line) for line in (None, b"{", b"[]", b"{}")] == [None] * 4
