"""A target's file is found, imported from what was registered, and says plainly what is wrong."""

import sys

import pytest

import ferry
from batching.models.spec import PARAMETERS
from ferry.modeling import SETTINGS
from workers.python_models.python_model import PythonModel
from workers.python_models.targets import Target, find_model, load_module, settings_of


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("a.py:B", "/m/a.py", "B"),
        ("/x/a-b.py:predict", "/x/a-b.py", "predict"),
        ("net.onnx", "/m/net.onnx", ""),
        ("hf:some/name", None, "some/name"),
    ],
)
def test_target_is_read(tmp_path, text, path, name):
    # Given / When
    target = Target.of(text, tmp_path.__class__("/m"))
    # Then
    assert (None if target.path is None else str(target.path), target.name) == (path, name)


def test_code_is_what_was_registered_under_its_own_path(tmp_path):
    # Given a file and a module beside it, registered, and changed or removed since
    home, model_dir = tmp_path / "home", tmp_path / "model"
    for folder in (home, model_dir / "sources", model_dir / "sources" / "pack"):
        folder.mkdir(parents=True)
    (home / "my-model.py").write_text("this is broken")
    (home / "beside.py").write_text("WORD = 'new'")
    copies = model_dir / "sources"
    (copies / "my-model.py").write_text(
        "import beside, pack.inner\n"
        "def predict(batch):\n    return [beside.WORD, pack.inner.WORD, __file__]\n"
    )
    (copies / "beside.py").write_text("WORD = 'old'")
    (copies / "pack" / "__init__.py").write_text("")
    (copies / "pack" / "inner.py").write_text("WORD = 'gone'")
    target = Target.of(f"{home}/my-model.py:predict", model_dir)
    # When
    model = find_model(load_module(target, model_dir), "predict")
    # Then
    assert model.predict([]) == ["old", "gone", f"{home}/my-model.py"]
    assert not list(tmp_path.rglob("*.pyc"))


def test_settings_are_those_of_registrations():
    # Given what `POST /models` and model-config.yaml take
    known = {one.rest for one in PARAMETERS if one.rest} | {one.name for one in PARAMETERS}
    known |= {name.removesuffix("_s").removesuffix("_ms") for name in known}
    # Then
    assert known >= SETTINGS
    assert "min_worker" in SETTINGS


def test_misspelt_setting_names_the_nearest():
    with pytest.raises(TypeError, match="bacth_size is no setting; did you mean batch_size"):
        type("Mine", (ferry.Model,), {"bacth_size": 3})
    with pytest.raises(TypeError, match="max_delay is no setting; did you mean max_batch_delay"):
        ferry.model(max_delay=3)
    # An attribute of one's own is none
    type("Mine", (ferry.Model,), {"labels": ["a"], "_batch_sizes": 3})


def test_settings_of_class_and_function():
    class Mine(ferry.Model):
        batch_size = 4

        def predict(self, batch):
            return batch

    marked = ferry.model(batch_size=2)(lambda batch: batch)
    module = type(sys)("mine")
    module.Mine, module.marked = Mine, marked
    assert settings_of(find_model(module, "Mine")) == {"batch_size": 4}
    assert settings_of(find_model(module, "marked")) == {"batch_size": 2}


@pytest.mark.parametrize("annotation", [int, set[int], dict[str, int], tuple[int, str]])
def test_batch_must_be_a_list(annotation):
    def predict(batch):
        return batch

    predict.__annotations__ = {"batch": annotation}
    model = ferry.Model()
    model.predict = predict
    with pytest.raises(TypeError, match="predict takes a batch"):
        PythonModel(model, "m", "1")
