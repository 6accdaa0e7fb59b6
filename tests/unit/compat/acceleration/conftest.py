import pytest
import torch
from ts.context import Context
from ts.torch_handler.acceleration import LEAST_ROWS
from ts.torch_handler.image_classifier import ImageClassifier

from tests.unit.models import NAMES, manifest

BATCH_SIZE = 2 * LEAST_ROWS


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a handler of an archive with these weights and this model-config.yaml."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(weights, config=None, *, kind=ImageClassifier, **section):
        (tmp_path / "model.pt").write_bytes(weights)
        (tmp_path / "index_to_name.json").write_text(NAMES)
        described, folder = manifest(serializedFile="model.pt", **section), str(tmp_path)
        handler = kind()
        handler.initialize(
            Context("m", folder, described, BATCH_SIZE, None, "0.12", model_yaml_config=config)
        )
        return handler

    return run


@pytest.fixture
def threads_of_torch():
    """Sets the number of threads that torch computes with."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
