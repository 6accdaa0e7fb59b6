"""Threads read the images of a batch, each on one core, or a GPU does, and nearly as Pillow.

torchvision decodes on the CPU by the same call, so the choice and the steps are tested everywhere.
"""

import io
import logging
import os
import threading

import pytest
import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.acceleration import JpegDecoder, on_tensors, thread_count
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.object_detector import ObjectDetector
from ts.torch_handler.vision_handler import VisionHandler

from tests.unit.models import Pooled, picture, scripted

CPU = torch.device("cpu")
JPEG = picture(image_format="JPEG", quality=90)
PROCESSING = ImageClassifier.image_processing


def decoded(*values):
    return JpegDecoder(on_tensors(PROCESSING), CPU).decode(values)


def by_pillow(content):
    with Image.open(io.BytesIO(content)) as image:
        return PROCESSING(image.convert("RGB"))


def test_images_of_a_batch_are_read_by_threads_that_compute_on_one_core_each(threads_of_torch):
    # Given a handler that notes how many threads its arithmetic may have
    threads_of_torch(3)
    seen = []

    def processing(image):
        seen.append((threading.current_thread().name[:6], torch.get_num_threads()))
        return transforms.functional.to_tensor(image)

    class Noting(VisionHandler):
        image_processing = staticmethod(processing)

    handler = Noting()
    handler.device = CPU
    # When a batch of two is read, and then one image
    assert handler.preprocess([{"data": picture()}] * 2).shape[0] == 2
    handler.preprocess([{"data": picture()}])
    # Then
    assert torch.get_num_threads() == 3
    assert seen == [("decode", 1)] * 2 + [("MainTh", 3)]


@pytest.mark.parametrize(
    ("cores", "share", "count"), [(2, 1, 2), (2, 2, 2), (16, 16, 16), (16, 4, 4), (64, 64, 16)]
)
def test_worker_reads_images_with_its_share_of_the_cores(monkeypatch, cores, share, count):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: share)
    assert thread_count() == count


def test_images_of_both_decoders_keep_their_order():
    # Given
    handler = ImageClassifier()
    handler.device = CPU
    handler._fast_batches.gpu_jpegs = JpegDecoder(on_tensors(PROCESSING), CPU)
    formats = ["PNG", "JPEG", "PNG", "JPEG"]
    modes = ["RGB", "RGB", "L", "L"]
    contents = [picture(mode, image_format=name) for mode, name in zip(modes, formats, strict=True)]

    # When
    batch = handler.preprocess([{"body": bytearray(content)} for content in contents])

    # Then
    expected = torch.stack([by_pillow(content) for content in contents])
    is_gpus = [not torch.equal(*pair) for pair in zip(batch, expected, strict=True)]
    assert is_gpus == [name == "JPEG" for name in formats]
    assert torch.allclose(batch, expected, atol=0.05)


@pytest.mark.parametrize(
    "content",
    [JPEG, picture("L", image_format="JPEG"), picture(size=(1, 1), image_format="JPEG")],
    ids=["rgb", "grey", "one pixel"],
)
def test_jpeg_decoder_is_near_pillow(content):
    # When
    (image,) = decoded(bytearray(content))

    # Then no pixel is off by more than two of 255 steps
    assert image.shape == (3, 224, 224)
    assert (image - by_pillow(content)).abs().max() < 2 / 255 / 0.224


@pytest.mark.parametrize(
    "value",
    [picture(), picture("CMYK", image_format="JPEG"), JPEG[:-2], b"x\xff\xd9", None, "text", [[0]]],
    ids=["png", "cmyk", "no end", "text", "none", "base64", "numbers"],
)
def test_jpeg_decoder_leaves_the_rest_to_pillow(value):
    assert decoded(value) == [None]


@pytest.mark.parametrize(
    ("most_pixels", "is_decoded"),
    [(300 * 200 // 2 - 1, {(300, 200): False}), (256**2 * 20, {(1, 21): False, (1, 20): True})],
    ids=["too many", "too thin to be resized"],
)
def test_b04_jpeg_decoder_keeps_to_the_limit_of_pixels(monkeypatch, most_pixels, is_decoded):
    # Given
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", most_pixels)

    # When
    images = decoded(*(picture(size=size, image_format="JPEG") for size in is_decoded))

    # Then
    assert [image is not None for image in images] == [*is_decoded.values()]


def test_jpeg_decoder_leaves_the_batch_to_pillow_when_one_jpeg_is_broken(caplog):
    # Given a table that claims more codes than can exist
    table = JPEG.index(b"\xff\xc4") + 5
    broken = JPEG[:table] + b"\xff" * 16 + JPEG[table + 16 :]

    # When, Then
    assert decoded(JPEG, broken) == [None, None]
    assert "images=2 are not decoded by the GPU" in caplog.text


@pytest.mark.parametrize(
    ("processing", "takes_tensors"),
    [
        (PROCESSING, True),
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
    assert torch.equal(handler.preprocess([{"body": bytearray(JPEG)}])[0], by_pillow(JPEG))


@pytest.mark.parametrize(
    ("config", "names"),
    [({"jpeg_decoder": "tpu"}, "cpu, gpu"), ({"dtype": "int3"}, "float32, bfloat16, float16")],
)
def test_error_names_the_choices_there_are(load, config, names):
    with pytest.raises(ValueError, match=f"one of {names}"):
        load(scripted(Pooled()), config)
