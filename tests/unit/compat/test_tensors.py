"""Tensors of the Open Inference Protocol: every datatype, JSON and binary, good and bad."""

import numpy as np
import pytest
import torch
from ts.torch_handler.open_inference import (
    BadTensor,
    Tensor,
    read_tensor,
    tensor_of,
    text_tensor,
)

NUMPY = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    **{f"{sign}INT{n}": f"{sign.lower()}int{n}" for sign in ("", "U") for n in (8, 16, 32, 64)},
}


@pytest.mark.parametrize(("datatype", "dtype"), NUMPY.items(), ids=NUMPY)
def test_binary_tensor_is_what_numpy_would_send(datatype, dtype):
    # Given
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype=dtype)

    # When
    tensor = read_tensor(datatype, [2, 3], array.tobytes())

    # Then
    assert tensor.nested() == array.tolist()
    assert tensor.binary() == array.tobytes()
    assert tensor_of(array) == tensor


def test_bfloat16_is_the_upper_half_of_a_float():
    # Given
    values = torch.tensor([1.0, -2.5, 0.0], dtype=torch.bfloat16)
    binary = values.view(torch.uint8).numpy().tobytes()

    # When
    tensor = read_tensor("BF16", [3], binary)

    # Then
    assert tensor.nested() == [1.0, -2.5, 0.0]
    assert tensor.binary() == binary
    assert tensor_of(values).datatype == "BF16"


def test_bytes_have_their_lengths_before_them():
    # Given
    binary = b"\x03\0\0\0cat\0\0\0\0\x02\0\0\0\xff\x00"

    # When
    tensor = read_tensor("BYTES", [3], binary)

    # Then
    assert tensor.values == [b"cat", b"", b"\xff\x00"]
    assert tensor.binary() == binary
    assert tensor.json_values() == ["cat", "", "\ufffd\x00"]


def test_json_values_may_be_flat_or_nested():
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        assert read_tensor("INT64", [2, 2], data).nested() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP128", [1], [1]),
        ("FP32", None, [1]),
        ("FP32", [-1], []),
        ("FP32", [1.0], [1]),
        ("FP32", [2], [1]),
        ("FP32", [2**62, 2**62], [1]),
        ("FP32", [1] * 33, [1]),
        ("UINT8", [1_000_000, 1, 1], bytes(1_000_000)),
        ("FP32", [1_000_001, 0], []),
        ("FP32", [1], b"abc"),
        ("BF16", [1], b"abc"),
        ("BYTES", [1], b"\xff\xff\xff\xff"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_tensor_that_does_not_fit_is_refused(datatype, shape, data):
    with pytest.raises(BadTensor):
        read_tensor(datatype, shape, data)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (3, Tensor("INT64", [], [3])),
        (True, Tensor("BOOL", [], [True])),
        ([1, 2.5], Tensor("FP64", [2], [1.0, 2.5])),
        ([[1], [2]], Tensor("INT64", [2, 1], [1, 2])),
        (["a", "b"], Tensor("BYTES", [2], ["a", "b"])),
        ([], Tensor("FP64", [0], [])),
        (torch.tensor([[1, 2]], dtype=torch.uint8), Tensor("UINT8", [1, 2], [1, 2])),
        (np.float32(0.5), Tensor("FP32", [], [0.5])),
        ([1, [2]], None),
        ([2**70], None),
        ({"cat": 0.9}, None),
        ("text", None),
        (None, None),
    ],
    ids=str,
)
def test_output_is_a_tensor_where_it_can_be(output, expected):
    assert tensor_of(output) == expected


def test_other_outputs_are_text():
    assert text_tensor({"cat": 0.9}) == Tensor("BYTES", [1], [b'{"cat": 0.9}'])
    assert text_tensor("tabby") == Tensor("BYTES", [1], [b"tabby"])
    assert text_tensor(bytearray(b"\xff")) == Tensor("BYTES", [1], [b"\xff"])
    with pytest.raises(TypeError):
        text_tensor(object())
