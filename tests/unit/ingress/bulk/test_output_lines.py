"""Output files: each line once, also when a feeder was killed while it wrote."""

import json

import pytest

from batching.protocol import Reply
from ingress.bulk.output_lines import LineSet, OutputFile, answer_line, error_line

BATCH = "batch_" + "a" * 32


def bad(number, custom_id="c"):
    return error_line(BATCH, number, custom_id, "why", "because")


def test_line_set_knows_its_numbers():
    numbers = LineSet()
    assert numbers.add(7)
    assert not numbers.add(7)
    assert numbers.add(100_000)
    assert 7 in numbers
    assert 8 not in numbers
    assert 10_000_000 not in numbers
    assert numbers.count == 2


@pytest.mark.parametrize("cut", [1, 20, 10_000_000])
def test_half_a_line_is_cut_off_and_the_others_are_known(tmp_path, cut):
    # Given two lines, the second one longer than what is read at once, and a part of a third
    path = tmp_path / "out.jsonl"
    whole = bad(0) + bad(12, "x" * 3_000_000)
    path.write_bytes(whole + bad(13)[:-1][:cut])
    # When
    done = LineSet()
    output = OutputFile(path, done)
    # Then
    assert (output.count, done.count) == (2, 2)
    assert 12 in done
    assert 13 not in done
    # And what comes next is a line of its own
    output.add(bad(13))
    output.sync()
    assert path.read_bytes() == whole + bad(13)
    assert output.size_bytes == path.stat().st_size
    output.close()


def test_files_are_only_their_owners(tmp_path):
    OutputFile(tmp_path / "out.jsonl", LineSet()).close()
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("custom_id", ["a", "\u00e9\u2028", "\ud800", 'q"\\\n', 7, None])
def test_custom_ids_come_back_exactly(custom_id):
    line = bad(3, custom_id)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "id": f"batch_req_{'a' * 32}_3",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": "why", "message": "because"},
    }


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b'{"a":\n 1}', {}, {"body": {"a": 1}}),
        (b"NaN", {}, {"body": "NaN"}),
        (b"plain", {}, {"body": "plain"}),
        (b"1", {"Content-Type": "text/plain"}, {"body": "1"}),
        (b"\xff\x00", {}, {"body_b64": "/wA="}),
        (b"", {}, {"body": ""}),
    ],
)
def test_answer_is_in_its_line(body, headers, expected):
    line, is_success = answer_line(BATCH, 1, "a", "job", Reply(200, body, headers))
    assert is_success
    response = {"status_code": 200, "request_id": "job", **expected}
    assert json.loads(line)["response"] == response


def test_failure_has_its_status_and_is_no_success():
    reply = Reply(503, b"Prediction failed", error_type="X", reason="prediction_failed")
    line, is_success = answer_line(BATCH, 1, "a", "job", reply)
    assert not is_success
    response = json.loads(line)["response"]
    assert response["status_code"] == 503
    assert response["body"] == {"code": 503, "type": "X", "message": "Prediction failed"}
