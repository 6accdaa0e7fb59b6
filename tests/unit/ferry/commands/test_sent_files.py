"""Results of jobs as files, and the keys by which no file runs twice."""

import pytest

from ferry.commands.jobs import idempotency_key, write_result


def test_key_is_of_model_version_type_name_and_content():
    # Given
    key = idempotency_key("m", {"version": "1"}, "a", b"x")
    # When / Then
    assert key == idempotency_key("m", {"version": "1"}, "a", b"x")
    assert key.startswith("ferry-")
    assert len(key) <= 255
    others = {
        idempotency_key("n", {"version": "1"}, "a", b"x"),
        idempotency_key("m", {"version": "2"}, "a", b"x"),
        idempotency_key("m", {}, "a", b"x"),
        idempotency_key("m", {"version": "1", "content_type": "text/plain"}, "a", b"x"),
        idempotency_key("m", {"version": "1"}, "b", b"x"),
        idempotency_key("m", {"version": "1"}, "a", b"y"),
    }
    assert len(others - {key}) == 6


def test_result_that_cannot_be_written_leaves_nothing(tmp_path):
    # Given a folder where the file is to be
    (tmp_path / "result").mkdir()
    # When / Then
    with pytest.raises(IsADirectoryError):
        write_result(tmp_path / "result", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
