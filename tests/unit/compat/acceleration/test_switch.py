"""`acceleration: off`, or the server's setting, turns all of it off; answers stay the same."""

import io

import pytest
import torch
from PIL import Image
from ts.context import Context
from ts.torch_handler.acceleration import is_on
from ts.torch_handler.acceleration.preparation import PreparedModel
from ts.torch_handler.image_classifier import ImageClassifier

from tests.unit.models import NAMES, manifest, scripted

CLASSES = 8


class Convolved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.see = torch.nn.Conv2d(3, 16, 3, stride=2)
        self.normalise = torch.nn.BatchNorm2d(16)
        self.weigh = torch.nn.Linear(16, CLASSES)

    def forward(self, images):
        return self.weigh(torch.relu(self.normalise(self.see(images))).mean(dim=(2, 3)))


@pytest.fixture
def load(tmp_path):
    torch.manual_seed(3)
    weights = scripted(Convolved().eval())

    def run(config=None):
        (tmp_path / "model.pt").write_bytes(weights)
        (tmp_path / "index_to_name.json").write_text(NAMES)
        handler = ImageClassifier()
        context = Context(
            "m",
            str(tmp_path),
            manifest(serializedFile="model.pt"),
            4,
            None,
            "0.12",
            model_yaml_config=config,
        )
        handler.initialize(context)
        return handler

    return run


def photos():
    found = []
    for shade in (0, 80, 160, 240):
        file = io.BytesIO()
        Image.new("RGB", (300, 260), (shade, 255 - shade, 90)).save(file, "JPEG")
        found.append({"body": file.getvalue()})
    return found


def answers_of(handler):
    return handler.postprocess(handler.inference(handler.preprocess(photos())))


@pytest.mark.parametrize("config", [{"acceleration": "off"}, {"acceleration": False}])
def test_model_config_turns_acceleration_off(load, config):
    # Given
    fast = load()
    expected = answers_of(fast)
    # When
    plain = load(config)
    answers = answers_of(plain)
    # Then
    assert isinstance(fast.model, PreparedModel)
    assert not isinstance(plain.model, PreparedModel)
    assert "_decoders" not in vars(plain)
    assert [list(answer) for answer in answers] == [list(answer) for answer in expected]
    for one, other in zip(answers, expected, strict=True):
        assert list(one.values()) == pytest.approx(list(other.values()), rel=1e-4)


def test_setting_of_the_server_turns_acceleration_off(load, monkeypatch):
    # Given
    monkeypatch.setenv("FERRY_ACCELERATION", "off")
    # When
    handler = load({"prepare": True, "acceleration": "on"})
    # Then
    assert not isinstance(handler.model, PreparedModel)


def test_acceleration_is_on_unless_it_is_turned_off(monkeypatch):
    monkeypatch.delenv("FERRY_ACCELERATION", raising=False)
    assert is_on({})
    assert is_on({"acceleration": "on"})
    assert not is_on({"acceleration": "off"})
