"""Files without code: what cannot be served is refused at load."""

import json

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from batching.protocol import OPEN_INFERENCE_TYPE, Part
from ferry.modeling import BadInput
from tests import nets
from workers.python_models.decoding import Row
from workers.python_models.files_without_code import Pipeline, TensorModel
from workers.python_models.python_model import PythonModel, no_requests


def load(path):
    model = TensorModel(path)
    model.load("cpu")
    return model


def three(path):
    nets.save_onnx(path, 3)


def brain(path):
    nets.save_onnx_types(path, TensorProto.BFLOAT16)


def state(path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)


def three_exported(path):
    nets.save_pt2(path, is_dynamic=False)


REFUSED = {
    "three.onnx": (three, "first axis of input x is fixed to 3"),
    "brain.onnx": (brain, "float32 instead of bfloat16"),
    "three.pt2": (three_exported, "fixed to 3: it is for the batch. Export"),
    "state.pt": (state, "state.pt is not TorchScript"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_cannot_be_served_is_refused_with_what_helps(name, tmp_path):
    # Given
    make, text = REFUSED[name]
    make(tmp_path / name)

    # When / Then
    with pytest.raises(ValueError, match=text):
        load(tmp_path / name)


def test_missing_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        load(tmp_path / "absent.onnx")


def test_row_that_torchscript_does_not_take_is_refused_alone(tmp_path):
    # Given
    nets.save_torchscript(tmp_path / "net.pt", torch.nn.Linear(4, 2))
    model = load(tmp_path / "net.pt")

    # When
    rows = [{"input": np.ones(size, np.float32)} for size in (4, 3, 4)]
    good, bad, _ = model.predict(rows)

    # Then
    assert good.shape == (2,)
    assert isinstance(bad, BadInput)
    assert "does not take input float32 [3]: RuntimeError: mat1 and mat2" in str(bad)


def test_only_output_has_the_name_that_the_file_tells(tmp_path):
    # Given
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["negative"])],
        "negation",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("negative", TensorProto.FLOAT, ["n", 2])],
    )
    nets.save_graph(tmp_path / "net.onnx", graph)
    model = PythonModel(TensorModel(tmp_path / "net.onnx"), "net", "1.0")
    model.load("cpu", 1)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    asked = json.dumps({"inputs": inputs}).encode()

    # When
    kind = f"{OPEN_INFERENCE_TYPE};json={len(asked)}"
    row = Row({"body": Part("body", kind, bytearray(asked))})
    (answer,) = model.answer([row], no_requests, lambda _: None)

    # Then
    (output,) = json.loads(answer.body)["outputs"]
    assert output == {"name": "negative", "datatype": "FP32", "shape": [1, 2], "data": [-1, -2]}
    assert [one["name"] for one in model.interface["outputs"]] == ["negative"]


@pytest.mark.slow
@pytest.mark.parametrize("architectures", [["BertForQuestionAnswering"], []])
def test_folder_without_a_known_task_is_refused(architectures, tmp_path):
    # Given
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    # When / Then
    with pytest.raises(ValueError, match="No task is known for"):
        Pipeline(str(tmp_path)).load("cpu")
