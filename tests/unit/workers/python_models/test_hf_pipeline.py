"""Pipelines of transformers that cannot be served are refused in words."""

import json
import sys

import pytest

from workers.python_models.hf_pipeline import Pipeline


def test_missing_library_is_told_with_how_to_install_it(monkeypatch):
    # Given
    monkeypatch.setitem(sys.modules, "transformers", None)

    # When / Then
    with pytest.raises(RuntimeError, match="pip install transformers"):
        Pipeline("text-classification").load("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("architectures", [["BertForQuestionAnswering"], []])
def test_folder_without_a_known_task_is_refused(architectures, tmp_path):
    # Given
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))

    # When / Then
    with pytest.raises(ValueError, match="No task is known for"):
        Pipeline(str(tmp_path)).load("cpu")
