"""Files without code on a real server: ONNX, torch.export, TorchScript, and transformers."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from onnx import TensorProto

from tests import nets
from tests.e2e.ferry_process import ferry_server
from tests.e2e.test_e2e_python_models import npy, put

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOGETHER = {"maxBatchDelay": 300, "batchSize": 4, "batchPolicy": "fixed"}
ROWS = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
SIZED = ("sized.onnx", "sized.pt2")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    with ferry_server(folder, environment={"HF_HUB_OFFLINE": "1"}) as running:
        nets.save_onnx(folder / "sized.onnx", data="sized.onnx.data")
        nets.save_pt2(folder / "sized.pt2")
        for name in SIZED:
            serve(running, name, **TOGETHER)
        yield running


def serve(server, name, **config):
    put(server.store, name, str(server.folder / name), **config)
    server.register(name)


def together(server, name, bodies):
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.predict(name, body), bodies))


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("make", [lambda row: json.dumps(row).encode(), npy])
def test_rows_are_batched_and_a_wrong_one_fails_alone(server, name, make):
    # When
    answers = together(server, name, [make(row) for row in [*ROWS, [1, 2, 3]]])
    # Then
    *good, bad = answers
    for row, answer in enumerate(good):
        assert answer.json() == {"y": nets.WEIGHT[row].tolist(), "size": 3}
    assert bad.status_code == 400
    assert bad.json()["message"] == "Input x wants a row of shape [4], not [3]."


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("is_binary", [True, False])
def test_tritons_client_asks_with_tensors(server, name, is_binary):
    # Given
    client = triton.InferenceServerClient(server.inference.removeprefix("http://"))
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[0, 1, 0, 0]], np.float32), binary_data=is_binary)
    wanted = [triton.InferRequestedOutput(key, binary_data=is_binary) for key in ("y", "size")]
    # When
    answer = client.infer(name, [tensor], outputs=wanted)
    described = client.get_model_metadata(name)
    client.close()
    # Then
    assert answer.as_numpy("y").tolist() == [nets.WEIGHT[1].tolist()]
    assert answer.as_numpy("y").dtype == np.float32
    assert answer.as_numpy("size").tolist() == [1]
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert described["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "size", "datatype": "INT64", "shape": [-1]},
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'["a", "b", "c", "d"]', "Input x is not an array of numbers"),
        (b"[[1], [2, 3]]", "Input x is not an array"),
        (b"[1, 2, 3, 1e99]", "Input x has a value that FP32 cannot hold"),
        (b'{"z": [1]}', "The inputs of this model are x, not z"),
        (b"[1,", "neither JSON nor a .npy file"),
        (npy(np.zeros((1, 4))), "wants a row of shape [4], not [1, 4]"),
    ],
)
def test_what_is_no_row_is_refused_in_words(server, body, words):
    answer = server.predict("sized.onnx", body)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


@pytest.mark.parametrize("name", ["one.onnx", "one.pt2"])
def test_file_for_one_row_is_served_row_by_row(server, name):
    # Given
    save = {"one.onnx": lambda path: nets.save_onnx(path, 1)}
    make = save.get(name, lambda path: nets.save_pt2(path, 1, is_dynamic=False))
    make(server.folder / name)
    # When
    serve(server, name, **TOGETHER)
    answers = together(server, name, [json.dumps(row).encode() for row in ROWS])
    # Then
    assert [answer.json()["y"] for answer in answers] == nets.WEIGHT[:3].tolist()
    assert {answer.json()["size"] for answer in answers} == {1}
    log = "".join(path.read_text() for path in (server.folder / "logs").rglob("*.log"))
    assert f"{name}: the first axis is fixed to 1, so rows are run one by one" in (
        log + server.process.log()
    )


def test_text_whole_numbers_and_bool_are_served_from_onnx(server):
    # Given
    kinds = (TensorProto.STRING, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16)
    nets.save_onnx_types(server.folder / "types.onnx", *kinds)
    serve(server, "types.onnx")
    row = {"in_0": "grün", "in_1": 2**40, "in_2": True, "in_3": 0.5}
    form = {name: npy(value) for name, value in row.items()}
    inputs = [
        {"name": name, "datatype": datatype, "shape": [1], "data": [row[name]]}
        for name, datatype in zip(row, ("BYTES", "INT64", "BOOL", "FP16"), strict=True)
    ]
    url = f"{server.inference}/v2/models/types.onnx/infer"
    # When
    answers = [
        server.predict("types.onnx", json.dumps(row).encode()),
        server.predict("types.onnx", None, files=form),
    ]
    tensors = server.http.post(url, json={"inputs": inputs}).json()["outputs"]
    # Then
    expected = {f"{name}_out": value for name, value in row.items()}
    assert [answer.json() for answer in answers] == [expected, expected]
    assert {one["name"]: one["data"] for one in tensors} == {k: [v] for k, v in expected.items()}
    assert [one["datatype"] for one in tensors] == ["BYTES", "INT64", "BOOL", "FP16"]
    # When values are lost, text is not UTF-8, or several rows come at once
    lossy = server.predict("types.onnx", json.dumps({**row, "in_1": 1.5}).encode())
    latin = server.predict("types.onnx", None, files={**form, "in_0": npy(b"gr\xfcn")})
    two = {**inputs[3], "shape": [2], "data": [1, 2]}
    whole_batch = server.http.post(url, json={"inputs": [*inputs[:3], two]})
    # Then
    assert "Input in_1 has a value that INT64 cannot hold" in lossy.json()["message"]
    assert (latin.status_code, whole_batch.status_code) == (400, 400)
    assert "wants a row of shape [], not [2]" in whole_batch.text


def test_exported_program_takes_keywords_and_bfloat16(server):
    nets.save_mixed_pt2(server.folder / "mixed.pt2")
    serve(server, "mixed.pt2")
    row = {"half": [1, 2], "many": 4, "flag": True}
    answer = server.predict("mixed.pt2", json.dumps(row).encode())
    assert answer.json() == {"output_0": [2, 4], "output_1": 5, "output_2": 3}
    described = server.http.get(f"{server.inference}/v2/models/mixed.pt2").json()
    assert [one["datatype"] for one in described["inputs"]] == ["BF16", "INT64", "BOOL"]


def test_torchscript_is_served_though_it_says_no_shapes(server):
    # Given a network that wants numbers with a point, and one that wants whole ones
    linear = torch.nn.Linear(4, 2, bias=False)
    linear.weight.data = torch.from_numpy(nets.WEIGHT.T.copy())
    nets.save_torchscript(server.folder / "linear.pt", linear)
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(nets.WEIGHT))
    nets.save_torchscript(server.folder / "embedding.pts", embedding)
    serve(server, "linear.pt")
    serve(server, "embedding.pts")
    # When / Then
    row = json.dumps(ROWS[2]).encode()
    assert server.predict("linear.pt", row).json() == nets.WEIGHT[2].tolist()
    assert server.predict("linear.pt", npy(np.array(ROWS[2], float))).json() == [4, 5]
    assert server.predict("embedding.pts", b"[1, 3]").json() == nets.WEIGHT[[1, 3]].tolist()
    described = [
        server.http.get(f"{server.inference}/v2/models/{name}").json()["inputs"][0]
        for name in ("linear.pt", "embedding.pts")
    ]
    assert [(one["datatype"], one["shape"]) for one in described] == [
        ("FP32", []),
        ("INT64", []),
    ]
    # Rows of different lengths are run apart
    answers = together(server, "embedding.pts", [b"[0]", b"[1, 2]", b"[3]"])
    assert [len(answer.json()) for answer in answers] == [1, 2, 1]


def test_folder_of_transformers_is_served(server):
    # Given
    pytest.importorskip("transformers")
    folder = server.folder / "classifier"
    nets.save_classifier(folder)
    put(server.store, "hugging", f"hf:{folder}", **TOGETHER)
    server.register("hugging")
    texts = [b"good", b"bad", b"good bad good"]
    # When
    alone = [server.predict("hugging", text).json() for text in texts]
    batched = [answer.json() for answer in together(server, "hugging", texts)]
    # Then
    assert {one["label"] for one in alone} <= {"LABEL_0", "LABEL_1"}
    for one, other in zip(alone, batched, strict=True):
        assert other["label"] == one["label"]
        assert other["score"] == pytest.approx(one["score"], abs=1e-4)
    assert server.predict("hugging", b"\xff").status_code == 400
    # More words than the network has positions: on a GPU they would end the worker.
    assert server.predict("hugging", b"good " * 600).status_code == 200
    described = server.manage("GET", "models/hugging", customized="true").json()[0]
    assert described["customizedMetadata"]["input"]["kind"] == "text"
