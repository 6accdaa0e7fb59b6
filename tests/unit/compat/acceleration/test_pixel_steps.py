"""A GPU runs the steps behind ToTensor over a whole batch: the same pixels, one wait."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors
from ts.torch_handler.acceleration.image_batches import ImageBatches, divide_steps
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.object_detector import ObjectDetector

from tests.unit.models import picture

CPU = torch.device("cpu")
CONTENTS = [picture(size=(300 + number, 200)) for number in range(4)]


def handler(kind, *, is_dividing):
    """Returns a handler that divides the steps as on a GPU, or does not, as on a CPU."""
    made = kind()
    made.device = CPU
    if is_dividing:
        made._fast_batches = Dividing(made, made._image)
    return made


class Dividing(ImageBatches):
    @property
    def steps(self):
        return divide_steps(self._handler.image_processing)


def rows(*values):
    return [{"body": value} for value in values]


class Waits(TorchDispatchMode):
    """Counts what a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "_local_scalar_dense" in str(function)
        return function(*args, **(kwargs or {}))


def test_batch_is_normalised_at_once_and_has_the_same_pixels():
    # Given
    expected = handler(ImageClassifier, is_dividing=False).preprocess(rows(*CONTENTS))
    divided = handler(ImageClassifier, is_dividing=True)
    images = divided._images(rows(*CONTENTS))

    # When
    with Waits() as waits:
        batch = divided._stacked(images)

    # Then
    assert {image.dtype for image in images} == {torch.uint8}
    assert torch.equal(batch, expected)
    assert waits.count == 1


def test_lists_of_numbers_among_images_stay_as_they_are():
    # Given
    numbers = torch.rand(3, 224, 224)
    both = rows(CONTENTS[0], numbers.tolist())

    # When
    batch = handler(ImageClassifier, is_dividing=True).preprocess(both)
    alone = handler(ImageClassifier, is_dividing=True).preprocess(both[1:])

    # Then
    assert torch.equal(batch, handler(ImageClassifier, is_dividing=False).preprocess(both))
    assert torch.equal(batch[1], numbers)
    assert torch.equal(alone[0], numbers)


def test_detector_gets_images_of_all_sizes_after_their_last_step():
    # When
    images = handler(ObjectDetector, is_dividing=True).preprocess(rows(*CONTENTS))

    # Then
    expected = handler(ObjectDetector, is_dividing=False).preprocess(rows(*CONTENTS))
    assert all(torch.equal(image, one) for image, one in zip(images, expected, strict=True))


def test_gpus_jpegs_have_the_same_pixels_when_they_are_normalised_at_once():
    # Given
    jpegs = [bytearray(picture(size=(300, 200 + i), image_format="JPEG")) for i in range(3)]
    whole = on_tensors(ImageClassifier.image_processing)
    steps = divide_steps(ImageClassifier.image_processing)

    # When
    images = JpegDecoder(on_tensors(steps.before), CPU).decode(jpegs)

    # Then
    expected = JpegDecoder(whole, CPU).decode(jpegs)
    assert torch.equal(steps.together(torch.stack(images)), torch.stack(expected))


@pytest.mark.parametrize(
    "processing",
    [
        transforms.ToTensor(),
        transforms.Compose([transforms.PILToTensor()]),
        transforms.Compose([transforms.ToTensor(), transforms.RandomErasing()]),
        transforms.Compose([transforms.ToTensor(), lambda image: image - image.mean()]),
        lambda image: image,
        None,
    ],
)
def test_steps_that_are_not_of_all_pixels_alike_are_not_divided(processing):
    assert divide_steps(processing) is None


NORMALISE = transforms.Normalize((0.5,), (0.5,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda image: np.asarray(image).copy(), NORMALISE),
        (lambda image: image.convert("F"), transforms.Normalize((128.0,), (64.0,))),
        (lambda image: image.convert("L").convert("1"), NORMALISE),
        (lambda image: image.convert("I"), transforms.ConvertImageDtype(torch.float32)),
        (lambda image: image.convert("L").convert("I;16"), transforms.ConvertImageDtype(torch.int)),
        (lambda image: image.convert("HSV"), NORMALISE),
    ],
    ids=["array", "F", "1", "I", "I;16", "HSV"],
)
def test_images_of_other_numbers_than_bytes_have_the_same_pixels(before, after):
    # Given
    class Own(ImageClassifier):
        image_processing = transforms.Compose([before, transforms.ToTensor(), after])
        model = None

    same_size = rows(picture(), picture())

    # When
    batch = handler(Own, is_dividing=True).preprocess(same_size)

    # Then
    expected = handler(Own, is_dividing=False).preprocess(same_size)
    assert batch.dtype == expected.dtype
    assert torch.equal(batch, expected)


def test_bytes_and_other_numbers_in_one_batch_have_the_same_pixels():
    # Given
    def convert_some(image):
        return image.convert("1" if image.mode == "L" else "L")

    class Own(ImageClassifier):
        image_processing = transforms.Compose([convert_some, transforms.ToTensor(), NORMALISE])
        model = None

    both = rows(picture("L"), picture())

    # When
    batch = handler(Own, is_dividing=True).preprocess(both)

    # Then
    assert torch.equal(batch, handler(Own, is_dividing=False).preprocess(both))
