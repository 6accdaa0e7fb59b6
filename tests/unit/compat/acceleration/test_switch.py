"""`acceleration: off`, or the server's setting, keeps all that is faster from running."""

import sys
from contextlib import contextmanager

import pytest
import torch
from ts.torch_handler import acceleration
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext

from tests.unit.models import Convolved, Pooled, picture, scripted, trained

EVERYTHING = {"prepare": True, "dtype": "float32", "jpeg_decoder": "gpu"}
SIZES = [(300, 260), (260, 300), (500, 300), (300, 300)]
ROWS = [{"body": picture(size=size, image_format="JPEG")} for size in SIZES * 2]


@contextmanager
def noted_functions():
    """Notes which functions of `acceleration` this thread calls."""
    noted = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == acceleration.__file__:
            noted.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield noted
    finally:
        sys.setprofile(None)


def answers_of(handler):
    return handler.postprocess(handler.inference(handler.preprocess(ROWS)))


@pytest.mark.parametrize(
    ("config", "variable"),
    [({"acceleration": "off"}, "on"), ({"acceleration": False}, "on"), ({}, "off")],
    ids=["model", "model, as YAML reads it", "server"],
)
def test_nothing_of_it_runs_when_acceleration_is_off(load, config, variable, monkeypatch):
    # Given
    weights = scripted(trained(Convolved))
    expected = answers_of(load(weights))
    monkeypatch.setenv("FERRY_ACCELERATION", variable)

    # When
    with noted_functions() as noted:
        answers = answers_of(load(weights, EVERYTHING | config))

    # Then
    assert noted == {"is_on"}
    for answer, one in zip(answers, expected, strict=True):
        assert list(answer) == list(one)
        assert answer == pytest.approx(one, rel=1e-4)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_all_of_it_runs_when_acceleration_is_on(load, monkeypatch, threads_of_torch):
    # Given
    threads_of_torch(2)
    monkeypatch.delenv("FERRY_ACCELERATION", raising=False)

    # When
    with noted_functions() as noted:
        answers_of(load(scripted(trained(Convolved)), EVERYTHING))

    # Then, but for what needs a GPU
    assert {"prepare", "_laid_out", "_joined", "read", "stacked", "decode_on_gpu"} <= noted


def test_switch_counts_for_handlers_with_an_initialize_of_their_own(monkeypatch):
    # Given
    class Own(ImageClassifier):
        def initialize(self, context):
            self.device, self.model = torch.device("cpu"), Pooled()

    monkeypatch.setenv("FERRY_ACCELERATION", "off")
    context, handler = MockContext(), Own()
    handler.initialize(context)

    # When
    with noted_functions() as noted:
        assert len(handler.handle(ROWS, context)) == len(ROWS)

    # Then
    assert noted == {"is_on"}
