"""Several threads read the images of a batch, each on one core, and the images keep their order."""

import io
import os
import threading

import pytest
import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors
from ts.torch_handler.acceleration.image_batches import decoder_count
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.vision_handler import VisionHandler

from tests.unit.models import picture

CPU = torch.device("cpu")


def test_images_of_a_batch_are_read_by_threads_that_compute_on_one_core_each():
    # Given a handler that notes how many threads its arithmetic may have
    seen = []

    def processing(image):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return transforms.functional.to_tensor(image)

    class Noting(VisionHandler):
        image_processing = staticmethod(processing)

    handler, before = Noting(), torch.get_num_threads()
    handler.device = CPU
    # When a batch of two is read, and then one image
    torch.set_num_threads(3)
    try:
        assert handler.preprocess([{"data": picture()}] * 2).shape[0] == 2
        handler.preprocess([{"data": picture()}])
        # Then
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert [threads for name, threads in seen if name.startswith("decode")] == [1, 1]
    assert [threads for name, threads in seen if not name.startswith("decode")] == [3]


@pytest.mark.parametrize(
    ("cores", "share", "count"), [(2, 1, 2), (2, 2, 2), (16, 16, 16), (16, 4, 4), (64, 64, 16)]
)
def test_worker_reads_images_with_its_share_of_the_cores(monkeypatch, cores, share, count):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: share)
    assert decoder_count() == count


def test_images_of_both_decoders_keep_their_order():
    # Given
    handler = ImageClassifier()
    handler.device = CPU
    handler._fast_batches.gpu_jpegs = JpegDecoder(on_tensors(handler.image_processing), CPU)
    is_jpeg = [False, True, False, True]
    modes = ["RGB", "RGB", "L", "L"]
    contents = [
        picture(mode, image_format="JPEG" if jpeg else "PNG")
        for mode, jpeg in zip(modes, is_jpeg, strict=True)
    ]

    # When
    batch = handler.preprocess([{"body": bytearray(content)} for content in contents])

    # Then
    opened = [Image.open(io.BytesIO(content)).convert("RGB") for content in contents]
    expected = torch.stack([ImageClassifier.image_processing(image) for image in opened])
    assert [not torch.equal(*pair) for pair in zip(batch, expected, strict=True)] == is_jpeg
    assert torch.allclose(batch, expected, atol=0.05)
