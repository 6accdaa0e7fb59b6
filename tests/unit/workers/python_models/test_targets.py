"""A target's file is found, imported from what was registered, and says plainly what is wrong."""

import sys

import pytest

import ferry
from workers.python_models.python_model import PythonModel
from workers.python_models.targets import Target, find_model, load_module


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", list(sys.path))


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
    model = find_model(load_module(target.path, model_dir), "predict")
    # Then
    assert model.predict([]) == ["old", "gone", f"{home}/my-model.py"]
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize("annotation", [int, set[int], dict[str, int], tuple[int, str]])
def test_batch_must_be_a_list(annotation):
    def predict(batch):
        return batch

    predict.__annotations__ = {"batch": annotation}
    model = ferry.Model()
    model.predict = predict
    with pytest.raises(TypeError, match="predict takes a batch"):
        PythonModel(model, "m", "1")
