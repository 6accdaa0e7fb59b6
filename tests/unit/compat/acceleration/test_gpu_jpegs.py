"""`jpeg_decoder: gpu`: what the GPU may decode, how near it is to Pillow, what happens without one.

torchvision decodes on the CPU by the same call, so the choice and the steps are tested everywhere.
"""

import io
import logging

import pytest
import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.object_detector import ObjectDetector

from tests.unit.models import Pooled, picture, scripted

CPU = torch.device("cpu")
JPEG = picture(image_format="JPEG", quality=90)


def decoder():
    return JpegDecoder(on_tensors(ImageClassifier.image_processing), CPU)


def by_pillow(content):
    with Image.open(io.BytesIO(content)) as image:
        return ImageClassifier.image_processing(image.convert("RGB"))


@pytest.mark.parametrize(
    "content",
    [JPEG, picture("L", image_format="JPEG"), picture(size=(1, 1), image_format="JPEG")],
    ids=["rgb", "grey", "one pixel"],
)
def test_jpeg_decoder_is_near_pillow(content):
    # When
    (image,) = decoder().decode([bytearray(content)])

    # Then no pixel is off by more than two of 255 steps
    assert image.shape == (3, 224, 224)
    step = 1 / 255 / 0.224
    assert (image - by_pillow(content)).abs().max() < 2 * step


@pytest.mark.parametrize(
    "value",
    [
        picture(),
        picture("CMYK", image_format="JPEG"),
        JPEG[:-500],
        JPEG[:-2],
        b"hello\xff\xd9",
        b"",
        None,
        "text",
        [[0.0]],
    ],
    ids=["png", "cmyk", "half", "no end", "text", "empty", "none", "base64", "numbers"],
)
def test_jpeg_decoder_leaves_the_rest_to_pillow(value):
    assert decoder().decode([value]) == [None]


def test_b04_jpeg_decoder_keeps_to_the_limit_of_pixels(monkeypatch):
    # Given
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 300 * 200 // 2 - 1)

    # When / Then
    assert decoder().decode([JPEG]) == [None]


def test_b18_jpeg_decoder_leaves_what_is_too_thin_to_be_resized_to_pillow(monkeypatch):
    # Given
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 256 * 256 * 20)

    # When
    images = decoder().decode([picture(size=(1, y), image_format="JPEG") for y in (21, 20)])

    # Then
    assert [image is None for image in images] == [True, False]


def test_jpeg_decoder_leaves_the_batch_to_pillow_when_one_jpeg_is_broken(caplog):
    # Given a table that claims more codes than can exist
    table = JPEG.index(b"\xff\xc4") + 5
    broken = JPEG[:table] + b"\xff" * 16 + JPEG[table + 16 :]

    # When
    with caplog.at_level(logging.WARNING):
        images = decoder().decode([JPEG, broken])

    # Then
    assert images == [None, None]
    assert "images=2 are not decoded by the GPU" in caplog.text


@pytest.mark.parametrize(
    ("processing", "takes_tensors"),
    [
        (ImageClassifier.image_processing, True),
        (ObjectDetector.image_processing, True),
        (transforms.Compose([lambda image: image.rotate(90), transforms.ToTensor()]), False),
        (transforms.ToTensor(), False),
    ],
)
def test_steps_of_ones_own_are_given_pillows_images(processing, takes_tensors):
    assert (on_tensors(processing) is not None) is takes_tensors


def test_jpeg_decoder_gpu_without_one_decodes_on_the_cpu_and_the_log_says_so(load, caplog):
    # When
    with caplog.at_level(logging.WARNING):
        handler = load(scripted(Pooled()), {"jpeg_decoder": "gpu"})

    # Then
    assert "not decoded by the GPU: there is none" in caplog.text
    batch = handler.preprocess([{"body": bytearray(JPEG)}])
    assert torch.equal(batch[0], by_pillow(JPEG))


def test_jpeg_decoder_names_the_decoders_there_are(load):
    with pytest.raises(ValueError, match="one of cpu, gpu"):
        load(scripted(Pooled()), {"jpeg_decoder": "tpu"})
