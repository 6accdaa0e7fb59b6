"""The built-in image handlers on a GPU; without one, these tests are skipped and say so."""

import json
import logging

import pytest
import torch
from ts.torch_handler.image_classifier import ImageClassifier

from batching.protocol import Part, Request
from tests.unit.models import NAMES, Pooled, manifest, picture, scripted
from tests.unit.workers.handling.batches import batch, runner_of
from workers.machine import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

CONTENTS = [picture(image_format="JPEG"), picture("L"), picture("L", image_format="JPEG")]


def classify(load_handler, device, config, model):
    """Returns the answers to one batch of all contents."""
    files = {"model.pt": scripted(model), "index_to_name.json": NAMES, "config.yaml": config}
    loaded = load_handler(
        files,
        handler="image_classifier",
        manifest=manifest(serializedFile="model.pt", configFile="config.yaml"),
        device=device,
        batch_size=len(CONTENTS),
    )
    requests = [Request({}, [Part("body", "image/jpeg", content)]) for content in CONTENTS]
    replies = runner_of(loaded).run(batch(*requests))
    assert [reply.status for reply in replies] == [200] * len(CONTENTS)
    return [json.loads(reply.body) for reply in replies]


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Pooled().eval()


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        ("{}", 1e-3),
        ("prepare: false", 1e-3),
        ("dtype: bfloat16", 2e-2),
        ("dtype: float16", 5e-3),
        ("jpeg_decoder: gpu", 2e-2),
    ],
)
def test_gpu_answers_as_the_cpu(config, tolerance, load_handler, model, caplog):
    # Given
    expected = classify(load_handler, Device("cpu"), "prepare: false", model)

    # When
    with caplog.at_level(logging.WARNING):
        answers = classify(load_handler, Device("cuda", 0), config, model)

    # Then
    assert not caplog.records
    for answer, one in zip(answers, expected, strict=True):
        assert answer == pytest.approx(one, abs=tolerance)


def test_gpu_copies_batches_that_the_next_one_does_not_overwrite():
    # Given
    handler = ImageClassifier()
    handler.device = torch.device("cuda", 0)
    images = [torch.full((3, 224, 224), float(number)) for number in range(4)]

    # When many batches follow each other without waiting
    batches = [handler._stacked([image + turn for image in images]) for turn in range(20)]

    # Then
    for turn, stacked in enumerate(batches):
        assert stacked.is_cuda
        assert stacked[:, 0, 0, 0].tolist() == [turn, turn + 1, turn + 2, turn + 3]
