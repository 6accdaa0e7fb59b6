"""What a command is to serve: names, files and settings of targets."""

import json

import pytest

from ferry.serving.python_file import TargetError
from ferry.serving.served_targets import read_target, read_targets, spec_fields
from workers.archives.model_archive import inspect_archive

PREDICT = "import helper\ndef predict(batch): return batch\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model and a module beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model.py").write_text(PREDICT)
    (tmp_path / "helper.py").write_text("")
    for name in ("net.onnx", "net.onnx.data", "net 2.pt2", "x.mar", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "my-model.py",
            ("my-model", "python_model", "FILE:predict", {"my-model.py", "helper.py"}),
        ),
        ("net.onnx", ("net", "tensor_model", "FILE", {"net.onnx", "net.onnx.data"})),
        ("net 2.pt2", ("net_2", "tensor_model", "FILE", {"net 2.pt2"})),
        ("hf:org/tiny bert", ("tiny_bert", "python_model", "hf:org/tiny bert", set())),
    ],
)
def test_target_has_a_name_and_files(folder, text, expected):
    # When
    [target] = read_target(text)
    # Then
    assert (target.name, target.handler, target.text("FILE"), set(target.sources)) == expected


def test_folder_in_the_store_is_an_archive_of_a_file_that_stays_where_it_is(folder):
    # Given
    [target] = read_target("my-model.py")
    # When
    target.write_folder(folder / "store", "1.0+2", {"device": "mps"})
    # Then
    info = inspect_archive(folder / "store", "store", folder / "work")
    assert (info.model_name, info.model_version, info.handler) == (
        "my-model",
        "1.0+2",
        "python_model",
    )
    assert info.manifest["model"]["target"] == f"{folder}/my-model.py:predict"
    assert info.config == {
        "batchSize": 32,
        "maxBatchDelay": 10,
        "batchPolicy": "adaptive",
        "minWorkers": 1,
        "maxWorkers": 1,
        "device": "mps",
    }
    assert (folder / "store" / "sources" / "my-model.py").read_text() == PREDICT


def test_more_workers_raise_the_most(folder):
    # Given
    text = "import ferry\n@ferry.model(min_worker=3)\ndef a(batch): ..."
    (folder / "many.py").write_text(text)
    # When
    [target] = read_target("many.py")
    # Then
    lines = dict(line.split(": ") for line in target.config().splitlines())
    assert (json.loads(lines["minWorkers"]), json.loads(lines["maxWorkers"])) == (3, 3)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nosuch.py"], "there is no file nosuch.py"),
        (["notes.txt"], "notes.txt is no target: FILE.py"),
        (["hf:"], "hf: needs a name"),
        (["my-model.py", "my-model.py:predict"], "2 models are called my-model"),
    ],
)
def test_refusal_says_what_is_wrong(folder, texts, expected):
    # When / Then
    with pytest.raises(TargetError, match=expected):
        read_targets(texts)


def test_fingerprint_differs_when_a_file_does(folder):
    # Given
    [before] = read_target("my-model.py")
    prints = [before.fingerprint()]
    # When
    for name, text in (("my-model.py", f"{PREDICT}#"), ("helper.py", "x = 1")):
        (folder / name).write_text(text)
        prints.append(read_target("my-model.py")[0].fingerprint())
    (folder / "notes.txt").write_text("another")
    # Then
    assert len(set(prints)) == 3
    assert read_target("my-model.py")[0].fingerprint() == prints[-1]


@pytest.mark.parametrize(
    ("workers", "device", "fields"),
    [
        (0, "", {}),
        (2, "cpu", {"min_worker": 2, "max_worker": 2, "device_type": "cpu"}),
        (0, "cuda", {"device_type": "gpu", "device_ids": ()}),
        (0, "cuda:1", {"device_type": "gpu", "device_ids": (1,)}),
        (0, "mps", {"device_type": "cpu"}),
    ],
)
def test_flags_say_where_workers_run(workers, device, fields):
    assert spec_fields(workers, device) == fields


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cpu:1"])
def test_unknown_device_is_refused(device):
    with pytest.raises(TargetError, match=f"--device {device}: write cpu"):
        spec_fields(0, device)
