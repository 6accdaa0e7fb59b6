"""The command that tries a model, by what the model takes."""

import shlex

import pytest

from batching.models.statuses import WorkerState, WorkerStatus
from ferry.serving.announcement import announcement, curl_line
from tests.support import make_spec

URL = "http://localhost:8080/predictions/m"
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "kind": {"enum": ["a'b", "c"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "unasked": {"type": "string"},
        "size": {"type": "number", "default": 2},
    },
    "required": ["x", "kind", "tags", "inner", "size"],
}
FORM = {
    "properties": {
        "photo": {"type": "string", "format": "binary", "title": "ferry-part"},
        "label": {"type": "string"},
    }
}


TENSOR = {"input": {"kind": "tensor"}}


def port(name, shape, datatype="FP32"):
    return {"name": name, "datatype": datatype, "shape": shape}


@pytest.mark.parametrize(
    ("interface", "arguments"),
    [
        ({"input": {"kind": "text"}}, ["-d", "some text"]),
        ({"input": {"kind": "text"}, "example": "it's"}, ["-d", "it's"]),
        ({"input": {"kind": "image"}, "example": {}}, ["-T", "photo.jpg"]),
        ({"input": {"kind": "bytes"}}, ["-T", "file"]),
        ({}, ["-T", "file"]),
        ({"input": {"kind": "any"}}, ["-d", "[1.0, 2.0, 3.0, 4.0]"]),
        ({"input": {"kind": "any"}, "example": {"a": 1}}, ["-d", '{"a": 1}']),
        (
            {"input": {"kind": "json", "schema": POINT}},
            ["-d", '{"x": 1, "kind": "a\'b", "tags": ["some text"], "inner": null, "size": 2}'],
        ),
        (
            {"input": {"kind": "form", "schema": FORM}},
            ["-F", "photo=@photo.jpg", "-F", "label=some text"],
        ),
        ({"inputs": [port("x", [-1, 2, -1])], **TENSOR}, ["-d", "[[0], [0]]"]),
        (
            {"inputs": [port("ids", [-1, 2], "INT64"), port("size", [-1])], **TENSOR},
            ["-d", '{"ids": [0, 0], "size": 0}'],
        ),
        ({"inputs": [port("x", [-1], "BYTES")], **TENSOR}, ["-d", '"some text"']),
        ({"inputs": [port("x", [-1, -1], "INT64")], **TENSOR}, ["-d", "[0]"]),
        ({"inputs": [port("x", [-1, 3, -1, -1])], **TENSOR}, ["-T", "row.npy"]),
        ({"inputs": [port("x", [])], **TENSOR}, ["-T", "row.npy"]),
        (
            {"inputs": [port("x", [-1, 3, -1, -1]), port("y", [-1, 2])], **TENSOR},
            ["-F", "x=@x.npy", "-F", "y=@y.npy"],
        ),
    ],
)
def test_curl_line_suits_what_the_model_takes(interface, arguments):
    # When
    line = curl_line(URL, interface)
    # Then
    assert shlex.split(line) == ["curl", URL, *arguments]


def test_announcement_names_tensors_and_leaves_out_what_is_unknown():
    def announced(**interface):
        worker = WorkerStatus("n-1", "n", 0, WorkerState.READY, 1, "cpu", "", interface=interface)
        return announcement(make_spec(model_name="m"), [worker], "http://localhost:8080")

    # When / Then
    with_tensors = announced(inputs=[port("x", [-1, 2])], summary="S.", **TENSOR)
    assert "m 1.0: S.\n  takes    x FP32 [-1, 2]\n" in with_tensors
    assert "takes" not in announced()
