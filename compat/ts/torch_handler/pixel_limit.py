"""Answers a client whose image has too many pixels. Does not import Pillow."""

import sys
from typing import Any

from ts.utils.util import PredictionException


def has_too_many_pixels(error: Exception) -> bool:
    """Returns whether Pillow has refused an image beyond `max_image_pixels`, in any handler."""
    image: Any = sys.modules.get("PIL.Image")
    bombs = () if image is None else (image.DecompressionBombError, image.DecompressionBombWarning)
    return isinstance(error, bombs)


def too_many_pixels() -> PredictionException:
    """Returns the answer to an image beyond `max_image_pixels`, status 400."""
    limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
    return PredictionException(
        f"Input is not a readable image: it has more than {limit} pixels (max_image_pixels).", 400
    )
