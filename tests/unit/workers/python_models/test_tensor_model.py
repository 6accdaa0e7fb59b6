"""Files without code: what cannot be served is refused at load, as `ferry doctor` says."""

import pytest
import torch
from onnx import TensorProto

from tests import nets
from tests.unit.workers.doctor.test_doctor import diagnose, notes, problems
from workers.python_models.tensor_model import TensorModel


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
    "three.onnx": (three, "first axis of input x is fixed to 3", "fixed to 3"),
    "brain.onnx": (brain, "float32 instead of bfloat16", "cannot be served"),
    "three.pt2": (three_exported, "fixed to 3: it is for the batch. Export", "fixed to 3"),
    "state.pt": (state, "state.pt is not TorchScript", "is not TorchScript"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_cannot_be_served_is_refused_with_what_helps(name, tmp_path):
    # Given
    make, loading, judged = REFUSED[name]
    make(tmp_path / name)

    # When
    content = (tmp_path / name).read_bytes()
    found = diagnose(tmp_path, {name: content}, handler="tensor_model", serializedFile=name)

    # Then
    with pytest.raises(ValueError, match=loading):
        load(tmp_path / name)
    (text,) = problems(found)
    assert judged in text


def test_missing_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        load(tmp_path / "absent.onnx")


def test_onnx_without_its_weights_is_a_problem(tmp_path):
    # Given
    nets.save_onnx(tmp_path / "net.onnx", data="net.onnx.data")
    content = (tmp_path / "net.onnx").read_bytes()

    # When
    found = [
        problems(diagnose(tmp_path, {"net.onnx": content}, handler=one, serializedFile="net.onnx"))
        for one in ("tensor_model", "image_classifier")
    ]

    # Then
    for (text,) in found:
        assert "External data path does not exist" in text
        assert "net.onnx.data" in text
        assert "--extra-files" in text


def test_base_handler_alone_is_a_problem(tmp_path):
    # Given
    nets.save_onnx(tmp_path / "net.onnx")
    files = {"net.onnx": (tmp_path / "net.onnx").read_bytes()}

    # When
    found = diagnose(tmp_path, files, handler="base_handler", serializedFile="net.onnx")

    # Then
    (text,) = problems(found)
    assert "name tensor_model" in text


def test_fixed_axis_of_one_is_a_note(tmp_path):
    # Given
    nets.save_onnx(tmp_path / "net.onnx", 1)
    files = {"net.onnx": (tmp_path / "net.onnx").read_bytes()}

    # When
    found = diagnose(tmp_path, files, handler="tensor_model", serializedFile="net.onnx")

    # Then
    assert not problems(found)
    assert any("rows are run one by one" in text for text in notes(found))
