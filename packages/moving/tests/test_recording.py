"""Recorded requests: what a file may hold, and what is said of one that cannot be read."""

import base64
import json
from pathlib import Path

import pytest

from ferry_moving.recording import RecordedRequest, Recorder, UnreadableRecording, read_requests


def read(path, *records):
    path.write_text("\n".join(json.dumps(record) for record in records))
    return list(read_requests(path))


def test_lines_have_bodies_of_each_kind(tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    # When
    text, parsed, encoded, file, none = read(
        tmp_path / "requests.jsonl",
        {"path": "/predictions/m?x=1", "headers": {"Content-Type": "text/plain"}, "body": "hé"},
        {"path": "/p", "body": {"x": [1]}},
        {"path": "/p", "body_base64": base64.b64encode(b"\0\xff").decode()},
        {"path": "/p", "body_file": "cat.jpg"},
        {"method": "GET", "path": "/ping"},
    )
    # Then
    assert text == RecordedRequest(
        1, "POST", "/predictions/m?x=1", [("Content-Type", "text/plain")], "hé".encode()
    )
    assert [one.content() for one in (parsed, encoded, file, none)] == [
        b'{"x": [1]}',
        b"\0\xff",
        b"\xff\xd8",
        b"",
    ]
    assert none.method == "GET"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ([], "not an object"),
        ({"path": "/a b"}, "path: begins with /"),
        ({"path": "/a\r\nx: y"}, "path: begins with /"),
        ({"path": "/ä"}, "path: begins with /"),
        ({"path": "/", "method": "get it"}, "method: 'get it' is none"),
        ({"path": "/", "headers": ["a"]}, "headers: write an object"),
        ({"path": "/", "headers": {"a b": "c"}}, "headers: 'a b'"),
        ({"path": "/", "headers": {"a": "c\r\nd: e"}}, "headers: 'a'"),
        ({"path": "/", "body_base64": "%"}, "ase64"),
        ({"path": "/", "body_file": "none"}, "body_file: there is no file"),
        ({"path": "/", "body": "", "body_file": "x"}, "body and body_file: write one of them"),
        ({"path": "/", "url": "http://x"}, "unknown: 'url'"),
    ],
)
def test_line_that_is_no_request_is_named(tmp_path, record, complaint):
    path = tmp_path / "r.jsonl"
    with pytest.raises(UnreadableRecording, match=r"r\.jsonl, line 2: ") as caught:
        read(path, {"path": "/"}, record)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["{", "\x00\xff", "[" * 100_000])
def test_text_that_is_not_json_is_named(tmp_path, text):
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(UnreadableRecording, match="line 1: this is not JSON"):
        list(read_requests(tmp_path / "r.jsonl"))


def test_what_is_recorded_can_be_read_and_has_no_keys(tmp_path):
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    secret = [("Authorization", "Bearer k"), ("cookie", "c"), ("Accept", "*/*")]
    # When
    recorder.write(RecordedRequest(7, "POST", "/p?x", secret, b"text"))
    recorder.write(RecordedRequest(8, "POST", "/p", [], b"\xff"))
    recorder.close()
    # Then
    assert list(read_requests(path)) == [
        RecordedRequest(1, "POST", "/p?x", [("Accept", "*/*")], b"text"),
        RecordedRequest(2, "POST", "/p", [], b"\xff"),
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Recorder(path)


def test_recording_ends_when_the_disk_is_full(tmp_path):
    # Given
    recorder = Recorder(tmp_path / "r.jsonl")
    recorder._stream.close()
    recorder._stream = Path("/dev/full").open("w")  # noqa: SIM115 - as the recorder's own
    # When
    recorder.write(RecordedRequest(1, "POST", "/"))
    recorder.close()
    # Then
    assert "No space left" in recorder.failure
