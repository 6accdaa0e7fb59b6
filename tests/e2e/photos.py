"""Pictures that look like something, made on the spot; the same ones every time."""

import io
import math
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def photos(count: int, format_name: str = "JPEG") -> list[bytes]:
    """Different pictures of different sizes: gradients, noise and shapes in turns."""
    makers = (_gradient, _noise, _shapes)
    return [_encode(makers[number % 3](number), format_name) for number in range(count)]


def _encode(image: Image.Image, format_name: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format_name)
    return stream.getvalue()


def _size(number: int) -> tuple[int, int]:
    return 240 + 37 * number, 500 - 23 * number


def _gradient(number: int) -> Image.Image:
    width, height = _size(number)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    angle = number * 0.7
    slope = x * math.cos(angle) + y * math.sin(angle)
    channels = [np.sin(slope * (3 + number + channel) * 2) * 127 + 128 for channel in range(3)]
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


def _noise(number: int) -> Image.Image:
    width, height = _size(number)
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(1 + number))


def _shapes(number: int) -> Image.Image:
    width, height = _size(number)
    dice = random.Random(number)
    image = Image.new("RGB", (width, height), tuple(dice.choices(range(256), k=3)))
    pencil = ImageDraw.Draw(image)
    for _ in range(12 + 5 * number):
        left, top = dice.randrange(width), dice.randrange(height)
        box = (left, top, left + dice.randrange(10, 160), top + dice.randrange(10, 160))
        color = tuple(dice.choices(range(256), k=3))
        draw = dice.choice((pencil.ellipse, pencil.rectangle))
        draw(box, fill=color)
    return image
