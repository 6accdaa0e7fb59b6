"""The 1797 digits of 8x8 pixels that scikit-learn carries, split once and for all.

Every fifth image, from the first one on, is held out: 360 images (20.03 %); the other 1437 train.
The split needs no random numbers, so it is the same with every version of every library. As in any
split of this set, the same writers' hands are on both sides.
"""

import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HELD_OUT_EVERY = 5
BRIGHTEST = 16


def split_indexes() -> tuple[list[int], list[int]]:
    """Returns indexes into scikit-learn's set: those to train with, and those held out."""
    indexes = range(len(load_digits().target))
    training = [index for index in indexes if index % HELD_OUT_EVERY]
    return training, [index for index in indexes if index % HELD_OUT_EVERY == 0]


def training_set() -> tuple[np.ndarray, np.ndarray]:
    """Returns images float32 [1437, 1, 8, 8], 0 (paper) to 1 (ink), and labels int64 [1437]."""
    digits = load_digits()
    indexes, _ = split_indexes()
    images = digits.images[indexes].astype(np.float32) / BRIGHTEST
    return images[:, np.newaxis], digits.target[indexes].astype(np.int64)


def held_out() -> list[tuple[bytes, int]]:
    """Returns 360 digits that no training has seen: PNG (8x8, greyscale, ink white) and label."""
    digits = load_digits()
    _, indexes = split_indexes()
    return [(_png(digits.images[index]), int(digits.target[index])) for index in indexes]


def _png(image: np.ndarray) -> bytes:
    pixels = np.rint(image * (255 / BRIGHTEST)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()
