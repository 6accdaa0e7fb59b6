"""The report of a GPU without results."""

import pytest

from benchmarks.gpu import read_record
from benchmarks.measuring.records import BenchmarkError


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"points": []}', "\udcff"])
def test_report_without_results_says_so_in_one_sentence(content, tmp_path):
    # Given
    path = tmp_path / "gpu.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    # When / Then
    with pytest.raises(BenchmarkError, match=f"There are no results in {path}: name the record"):
        read_record(path)
