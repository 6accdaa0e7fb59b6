"""The report of a GPU without results."""

import pytest

from benchmarks.gpu_report import read_record


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"points": []}', "\udcff"])
def test_report_without_results_says_so_in_one_sentence(content, tmp_path):
    # Given
    path = tmp_path / "gpu.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    # When / Then
    with pytest.raises(SystemExit, match=f"There are no results in {path}: name the one record"):
        read_record([str(path)])


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_report_takes_one_file(arguments):
    with pytest.raises(SystemExit, match="name the one record"):
        read_record(arguments)
