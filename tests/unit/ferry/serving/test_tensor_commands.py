"""The command that `ferry serve` prints for a model of tensors."""

import dataclasses

import pytest

from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerState, WorkerStatus
from ferry.serving.announcement import curl_line
from ferry.serving.live_models import LiveModel

WORKER = WorkerStatus("worker-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")


def port(name, shape, datatype="FP32"):
    return {"name": name, "datatype": datatype, "shape": shape}


IMAGE = """python -c 'import numpy as n; n.save("row0.npy", n.zeros([3, 64, 64]))' && curl URL """


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([port("x", [-1, 4])], "curl URL -d '[0, 0, 0, 0]'"),
        ([port("x", [-1, -1], "INT64")], "curl URL -d '[0]'"),
        ([port("x", [-1], "BYTES")], "curl URL -d '\"some text\"'"),
        ([port("x", [-1, 2]), port("y", [-1])], 'curl URL -d \'{"x": [0, 0], "y": 0}\''),
        ([port("x", [-1, 3, -1, -1])], f"{IMAGE}-T row0.npy"),
    ],
)
def test_row_of_zeros_is_sent_as_a_file_where_it_is_long(inputs, expected):
    # Given
    interface = {"input": {"kind": "tensor"}, "inputs": inputs}
    live = LiveModel(
        ModelSpec("m", "1.0", "", "tensor_model"),
        [dataclasses.replace(WORKER, interface=interface)],
    )

    # When / Then
    assert curl_line(live, "").replace("/predictions/m", "URL") == expected
