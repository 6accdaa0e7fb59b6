"""Lines of input files: what runs, and why others do not. Output files: each line once."""

import base64
import json

import pytest

from ferry_bulk import lines
from ferry_bulk.lines import (
    BadLine,
    OutputFile,
    body_to_show,
    output_line,
    parse_line,
    read_lines,
)

GOOD = {"custom_id": "a", "method": "POST", "url": "/predictions/m", "body": {"x": 1}}
BATCH = "batch_" + "a" * 32


def parsed(endpoint="/predictions", **changes):
    document = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return parse_line((0, json.dumps(document).encode()), endpoint)


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
    assert (line.custom_id, line.model_name, line.path) == ("a", "m", "/predictions/m")
    assert (line.content_type, line.body) == (content_type, content)


def test_line_may_name_a_version_and_is_sent_encoded():
    assert parsed(url="/predictions/m/2.0").path == "/predictions/m/2.0"
    assert parsed("/predictions/m", url="/predictions/m/2.0").model_name == "m"
    assert parsed(url="/predictions/%C3%A9?").path == "/predictions/%C3%A9%3F"


@pytest.mark.parametrize(
    ("text", "code"),
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
def test_bad_line_is_named(text, code):
    with pytest.raises(BadLine) as told:
        parse_line((0, text), "/predictions")
    assert told.value.error["code"] == code


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
    ],
)
def test_bad_line_keeps_its_custom_id(changes, code):
    with pytest.raises(BadLine) as told:
        parsed(**changes)
    assert (told.value.error["code"], told.value.custom_id) == (code, "a")


def test_url_must_be_of_the_endpoint():
    with pytest.raises(BadLine) as told:
        parsed("/predictions/m", url="/predictions/mm")
    assert told.value.error["code"] == "mismatched_url"


def test_lines_are_numbered_without_empty_ones_and_long_ones_are_skipped(tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(lines, "LONGEST_BYTES", 1000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"one\n\n  \n" + b"x" * 3_000_000 + b"\ntwo\n" + b"last")
    # When / Then
    expected = [(0, b"one\n"), (1, None), (2, b"two\n"), (3, b"last")]
    assert list(read_lines(path)) == expected


def refusal(number, custom_id="c"):
    error = {"code": "why", "message": "because"}
    return output_line(BATCH, number, custom_id, error=error)


@pytest.mark.parametrize("cut", [1, 20, 10_000_000])
def test_half_a_line_is_cut_off_and_the_others_are_known(tmp_path, cut):
    # Given two lines, a long one of them, and a part of a third
    path = tmp_path / "out.jsonl"
    whole = refusal(0) + refusal(12, "x" * 3_000_000)
    path.write_bytes(whole + refusal(13)[:-1][:cut])
    # When
    done = bytearray(14)
    output = OutputFile(path, done)
    # Then
    assert (output.count, [number for number in range(14) if done[number]]) == (2, [0, 12])
    assert path.stat().st_mode & 0o777 == 0o600
    # And what comes next is a line of its own
    output.add(refusal(13))
    output.flush(to_disk=True)
    assert path.read_bytes() == whole + refusal(13)
    output.close()


@pytest.mark.parametrize("custom_id", ["a", "\u00e9\u2028", "\ud800", 'q"\\\n', 7, None])
def test_custom_ids_come_back_exactly(custom_id):
    text = refusal(3, custom_id)
    assert text.count(b"\n") == 1
    assert json.loads(text) == {
        "id": f"batch_req_{'a' * 32}_3",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": "why", "message": "because"},
    }


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"a":\n 1}', "", {"body": {"a": 1}}),
        (b"NaN", "", {"body": "NaN"}),
        (b"plain", "", {"body": "plain"}),
        (b"1", "text/plain", {"body": "1"}),
        (b"\xff\x00", "", {"body_b64": "/wA="}),
        (b"", "", {"body": ""}),
    ],
)
def test_answer_is_in_its_line(body, content_type, expected):
    assert body_to_show(body, content_type) == expected
