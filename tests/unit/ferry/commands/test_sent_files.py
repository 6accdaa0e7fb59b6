"""Results of jobs as files, and the keys by which no file runs twice."""

import pytest

from ferry.commands.jobs import idempotency_key, suffix_of, write_result
from ferry_client.jobs import Prediction


@pytest.mark.parametrize(
    ("content_type", "suffix"),
    [
        ("application/json; charset=utf-8", ".json"),
        ("text/plain", ".txt"),
        ("image/png", ".png"),
        ("image/jpeg", ".jpg"),
        ("application/x-unheard-of", ".out"),
        ("", ".out"),
    ],
)
def test_suffix_fits_the_content_type(content_type, suffix):
    assert suffix_of(Prediction(200, {"content-type": content_type}, b"")) == suffix


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
