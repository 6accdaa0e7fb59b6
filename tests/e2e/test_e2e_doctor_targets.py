"""What `ferry doctor` says of archives without a handler is what a server does with them."""

import json

import pytest
import torch

from tests import nets
from tests.e2e.ferry_process import ferry_server
from workers.examination import examine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
EXPORTS = ("onnx", "pt2", "pt")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ferry_server(tmp_path_factory.mktemp("judged")) as running:
        yield running


def python_file(text):
    return lambda folder: (folder / "code.py").write_text(text)


def state_dict(folder):
    torch.save(torch.nn.Linear(4, 2).state_dict(), folder / "net.pt")


def script(folder):
    nets.save_torchscript(folder / "net.pt", torch.nn.Linear(4, 2))


PREDICT = "def predict(batch): return batch"
PYTHON = {"handler": "python_model", "target": "code.py:predict"}
ONNX, PT2, PT = ({"handler": "tensor_model", "serializedFile": f"net.{end}"} for end in EXPORTS)
BASE = {"handler": "base_handler", "serializedFile": "net.onnx"}
# Case -> what makes the files, the manifest's section, whether the model answers.
ARCHIVES = {
    "onnx": (lambda d: nets.save_onnx(d / "net.onnx", data="net.onnx.data"), ONNX, True),
    "onnx of three": (lambda d: nets.save_onnx(d / "net.onnx", 3), ONNX, False),
    "no onnx": (lambda d: (d / "net.onnx").write_bytes(b"none"), ONNX, False),
    "base_handler": (lambda d: nets.save_onnx(d / "net.onnx"), BASE, False),
    "pt2 of one": (lambda d: nets.save_pt2(d / "net.pt2", 1, is_dynamic=False), PT2, True),
    "torchscript": (script, PT, True),
    "state dict": (state_dict, PT, False),
    "absent": (lambda _: None, PT, False),
    "no target": (lambda _: None, {"handler": "python_model"}, False),
    "python": (python_file(PREDICT), PYTHON, True),
    "python, async": (python_file(f"async {PREDICT}"), PYTHON, False),
    "python, import": (python_file(f"import no_such_module\n{PREDICT}"), PYTHON, False),
    "python, syntax": (python_file("def"), PYTHON, False),
}


def put(folder, name, model, make):
    """Writes an archive that is a folder."""
    (folder / "MAR-INF").mkdir(parents=True)
    manifest = {"model": {"modelName": name, "modelVersion": "1.0", **model}}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    make(folder)


@pytest.mark.parametrize("case", ARCHIVES)
def test_doctor_says_what_the_server_does(server, case):
    # Given
    make, model, is_served = ARCHIVES[case]
    name = "".join(letter if letter.isalnum() else "_" for letter in case)
    folder = server.store / name
    put(folder, name, model, make)
    # When
    report = examine(folder)
    answer = server.manage("POST", "models", url=name, initial_workers=1, synchronous="true")
    if answer.status_code == 200:
        answer = server.predict(name, b"[1, 0, 0, 0]")
        server.manage("DELETE", f"models/{name}")
    # Then
    assert (answer.status_code == 200) == is_served, answer.text
    assert report.will_run == is_served, report.findings
