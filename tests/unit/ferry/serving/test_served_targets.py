"""What a command is to serve: names, files and settings of targets; Python files are not run."""

import re

import pytest

from ferry.serving.served_targets import TargetError, read_target, read_targets, spec_fields
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


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nosuch.py"], "there is no file nosuch.py"),
        (["notes.txt"], "notes.txt cannot be served. These can: FILE.py"),
        (["hf:"], "hf: needs a name"),
        (["my-model.py", "my-model.py:predict"], "2 models are called my-model"),
    ],
)
def test_refusal_says_what_is_wrong(folder, texts, expected):
    # When / Then
    with pytest.raises(TargetError, match=expected):
        read_targets(texts)


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


# --- Python files


SENTIMENT = """
import ferry
raise SystemExit("this file must not be run")

class BertQA(ferry.Model):
    batch_size = 8
    version = "2.0"
    def predict(self, texts): return texts
"""


@pytest.fixture
def read(tmp_path):
    """Reads a file of this text, with these modules beside it."""

    def read_text(text, label="", name="my-model.py", **beside):
        for module, content in beside.items():
            (tmp_path / f"{module}.py").write_text(content)
        (tmp_path / name).write_text(text)
        return read_target(f"{tmp_path / name}:{label}" if label else f"{tmp_path / name}")

    return read_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTIMENT, {"bert_qa": {"batchSize": 8}}),
        ("def predict(batch): return batch", {"my-model": {}}),
        ("import ferry as f\n@f.model(batch_size=4)\ndef a(b): ...", {"a": {"batchSize": 4}}),
        (
            "from ferry import model as m\n@m\ndef a(b): ...\n@m()\ndef c(b): ...",
            {"a": {}, "c": {}},
        ),
        ("import ferry\n@ferry.model(name='x')\ndef predict(b): ...", {"x": {}}),
        (
            "from ferry import Model as M\nSIZE = 16\n"
            "class A(M):\n batch_size: int = SIZE\n min_worker = 2\n def predict(self, b): ...\n"
            "class B(A):\n max_batch_delay = 5\n",
            {
                "a": {"batchSize": 16, "minWorkers": 2},
                "b": {"batchSize": 16, "minWorkers": 2, "maxBatchDelay": 5},
            },
        ),
        (
            "import ferry\nclass Base(ferry.Model):\n queue_timeout = 9\n"
            "class A(Base):\n device_ids = (0, 1)\n def predict(self, b): ...",
            {"a": {"queueTimeout": 9, "deviceIds": [0, 1]}},
        ),
        (
            "try:\n import ferry\nexcept ImportError:\n pass\nif True:\n"
            " class A(ferry.Model):\n  def predict(self, b): ...",
            {"a": {}},
        ),
        ("predict = print\nif __name__ == '__main__':\n def predict(b): ...", {"my-model": {}}),
    ],
)
def test_models_are_found_however_they_are_written(read, text, expected):
    # Given / When
    found = read(text)
    # Then
    assert {one.name: one.settings for one in found} == expected


def test_label_picks_one(read):
    # Given
    text = f"{SENTIMENT}\ndef predict(batch): ..."
    # When
    [found] = read(text, "predict")
    # Then
    assert (found.label, found.name, found.version) == ("predict", "my-model", "1.0")
    [found] = read(text, "BertQA")
    assert (found.label, found.name, found.version) == ("BertQA", "bert_qa", "2.0")
    with pytest.raises(TargetError, match="has no model 'Nosuch'; it has: BertQA, predict"):
        read(text, "Nosuch")


CLASS = "import ferry\nclass A(ferry.Model):\n def predict(self, b): ...\n "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "def predict(batch:\n",
            ":1: '(' was never closed\n    def predict(batch:\n               ^",
        ),
        ("x = 1", "serves nothing: it needs a function predict(batch)"),
        (f"{CLASS}batch_sise = 3", ":4: batch_sise is not a setting; did you mean batch_size?"),
        (f"{CLASS}batch_size = len('a')", ":4: batch_size must be a plain value"),
        (f"{CLASS}batch_size = '3'", ":4: batch_size must be int, not '3'"),
        (f"{CLASS}batch_size = True", ":4: batch_size must be int, not True"),
        (f"{CLASS}batch_size = 0", ":4: batch_size must be 1 or more, not 0"),
        (f"{CLASS}batch_policy = 'x'", ":4: batch_policy must be one of fixed, adaptive"),
        (f"{CLASS}version = 1.0", ":4: version must be str, not 1.0"),
        (
            "import ferry\n@ferry.model(max_delay=1)\ndef a(b): ...",
            ":2: max_delay is not a setting; did you mean max_batch_delay?",
        ),
        ("import ferry\n@ferry.model(**x)\ndef a(b): ...", ":2: ** is not a setting"),
        ("import ferry\nclass A(ferry.Model): ...", "serves nothing: it needs"),
        (f"{CLASS}name = 'a b'", "'a b' cannot be the name or version"),
        (f"{CLASS}version = ''", "'' cannot be the name or version"),
    ],
)
def test_refusal_names_file_and_line(read, text, expected):
    # Given / When / Then
    with pytest.raises(TargetError, match=rf"my-model\.py.*{re.escape(expected)}"):
        read(text)


def test_sources_are_the_modules_beside_it_that_it_imports(tmp_path):
    # Given
    files = {
        "model.py": "import json, helper\nfrom pack import part\ndef predict(b):\n import late",
        "helper.py": "import model",
        "late.py": "",
        "pack/__init__.py": "",
        "pack/part.py": "from . import other\nfrom .deep.er import x",
        "pack/other.py": "broken(",
        "pack/deep/er.py": "",
        "unused.py": "",
    }
    for place, text in files.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    # When
    [found] = read_target(str(tmp_path / "model.py"))
    # Then
    assert found.sources == {place: tmp_path / place for place in files if place != "unused.py"}
