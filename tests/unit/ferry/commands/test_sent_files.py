"""Results of jobs as files, and the keys by which no file runs twice."""

import click
import pytest

from ferry.commands.jobs import (
    files_in,
    idempotency_key,
    suffix_of,
    without_result,
    write_result,
)
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


def test_files_with_a_result_are_left_out(tmp_path):
    # Given
    inputs, results = tmp_path / "inputs", tmp_path / "results"
    inputs.mkdir()
    for name in ("a", "a.jpg", "b.jpg"):
        (inputs / name).touch()
    (inputs / "folder").mkdir()
    results.mkdir()
    write_result(results / "a.jpg.json", b"{}")
    (results / ".ferry-b.jpg").touch()  # left by a command that was killed
    # When
    found = files_in([inputs, inputs / "folder"])
    # Then
    assert [file.name for file in found] == ["a", "a.jpg", "b.jpg"]
    assert [file.name for file in without_result(found, results)] == ["a", "b.jpg"]
    assert [file.name for file in without_result(found, tmp_path / "new" / "one")] == [
        "a",
        "a.jpg",
        "b.jpg",
    ]


def test_results_of_two_files_never_have_one_name(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").touch()
    files = files_in([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(click.ClickException, match="several files are called same"):
        without_result(files, tmp_path / "results")
    with pytest.raises(click.ClickException, match="a folder of their own"):
        without_result(files, tmp_path / "one" / ".." / "one")


def test_result_that_cannot_be_written_leaves_nothing(tmp_path):
    # Given a folder where the file is to be
    (tmp_path / "result").mkdir()
    # When / Then
    with pytest.raises(IsADirectoryError):
        write_result(tmp_path / "result", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
