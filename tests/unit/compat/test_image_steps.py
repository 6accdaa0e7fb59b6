"""An `image_processing` tells how short a side becomes, and whether grey images may stay grey."""

import io

import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.images import open_image, short_side_after
from ts.torch_handler.object_detector import ObjectDetector

from tests.unit.models import picture


@pytest.mark.parametrize(
    ("processing", "short_side"),
    [
        (ImageClassifier.image_processing, 256),
        (transforms.Compose([transforms.ToTensor(), transforms.Resize([64])]), 64),
        (v2.Compose([v2.ToImage(), v2.Resize(32)]), 32),
        (transforms.Resize(16), 16),
        (transforms.Resize((16, 16)), None),
        (transforms.Resize(16, max_size=20), None),
        (transforms.Compose([transforms.CenterCrop(9), transforms.Resize(16)]), None),
        (ObjectDetector.image_processing, None),
        (len, None),
    ],
)
def test_length_of_the_short_side_is_known_where_the_steps_say_it(processing, short_side):
    assert short_side_after(processing) == short_side


def own_transforms(means, model):
    """Makes a handler with its own transforms: a Normalize of this many means, or none."""
    normalise = [transforms.Normalize((0.1307,) * means, (0.3081,) * means)] if means else []

    class Own(ImageClassifier):
        image_processing = transforms.Compose([transforms.ToTensor(), *normalise])

    handler = Own()
    handler.device, handler.model = torch.device("cpu"), model
    return handler


@pytest.mark.parametrize(
    ("means", "channels", "expected"),
    [(1, 1, 1), (1, None, 1), (0, None, 1), (0, 1, 1), (3, None, 3), (1, 3, 3), (0, 3, 3)],
)
def test_grey_image_stays_grey_for_transforms_that_do_not_want_rgb(means, channels, expected):
    # Given
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, 8, 3)) if channels else None
    handler = own_transforms(means, model)

    # When
    pixels = handler.preprocess([{"data": picture("L")}, {"body": picture("L")}])

    # Then
    assert pixels.shape == (2, expected, 200, 300)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [("1", 1, 255), ("I;16", 100 * 256, 100), ("LA", (100, 7), 100)],
)
def test_grey_image_of_any_depth_stays_grey(mode, colour, expected):
    # Given
    content = io.BytesIO()
    Image.new(mode, (30, 20), colour).save(content, "PNG")

    # When
    image = open_image(content.getvalue(), keep_grey=True)

    # Then
    assert (image.mode, image.size) == ("L", (30, 20))
    assert image.getextrema() == (expected, expected)


def test_grey_image_is_rgb_for_built_in_transforms_and_colour_stays():
    # Given
    detector, classifier = ObjectDetector(), own_transforms(1, None)
    detector.device = torch.device("cpu")

    # When / Then
    assert detector.preprocess([{"data": picture("L")}] * 2).shape == (2, 3, 200, 300)
    assert classifier.preprocess([{"data": picture()}]).shape[1] == 3
