"""What a Python file serves, read without running it."""

import re

import pytest

from ferry.serving.python_file import TargetError, read_python_file, sources_of

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
        return read_python_file(tmp_path / name, label)

    return read_text


def test_class_is_served_under_its_name_in_snake_case(read):
    # Given / When
    [found] = read(SENTIMENT)
    # Then
    assert (found.label, found.name, found.version) == ("BertQA", "bert_qa", "2.0")
    assert found.settings == {"batchSize": 8}


def test_function_predict_is_served_under_the_files_name(read):
    # Given / When
    [found] = read("def predict(batch): return batch")
    # Then
    assert (found.label, found.name, found.settings) == ("predict", "my-model", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    assert found.name == "my-model"
    with pytest.raises(TargetError, match="serves no 'Nosuch'; there is: BertQA, predict"):
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
        (f"{CLASS}batch_sise = 3", ":4: batch_sise is no setting; did you mean batch_size?"),
        (f"{CLASS}batch_size = len('a')", ":4: batch_size must be a plain value"),
        (f"{CLASS}batch_size = '3'", ":4: batch_size must be int, not '3'"),
        (f"{CLASS}batch_size = True", ":4: batch_size must be int, not True"),
        (f"{CLASS}batch_size = 0", ":4: batch_size must be 1 or more, not 0"),
        (f"{CLASS}batch_policy = 'x'", ":4: batch_policy must be one of fixed, adaptive"),
        (f"{CLASS}version = 1.0", ":4: version must be str, not 1.0"),
        (
            "import ferry\n@ferry.model(max_delay=1)\ndef a(b): ...",
            ":2: max_delay is no setting; did you mean max_batch_delay?",
        ),
        ("import ferry\n@ferry.model(**x)\ndef a(b): ...", ":2: ** is no setting"),
        ("import ferry\nclass A(ferry.Model): ...", "serves nothing: it needs"),
        (f"{CLASS}name = 'a b'", "'a b' can be no name or version"),
        (f"{CLASS}version = ''", "'' can be no name or version"),
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
    found = sources_of(tmp_path / "model.py")
    # Then
    assert found == {place: tmp_path / place for place in files if place != "unused.py"}
