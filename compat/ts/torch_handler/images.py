"""Turns what a client sent into an image, or says politely that it is none."""

import base64
import io
import re
import struct
import zlib
from typing import Any

from PIL import Image

from ts.torch_handler.acceleration.resizing import is_too_thin
from ts.torch_handler.pixel_limit import too_many_pixels
from ts.utils.util import PredictionException

# Pillow would try some forty parsers, EPS among them, which runs Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")

# Of a JPEG. Encoders write some ten; each takes up to 50 ms at the default limit of pixels.
MOST_SCANS = 50

_START_OF_JPEG = b"\xff\xd8"
_START_OF_SCAN = b"\xff\xda"
_END_OF_JPEG = b"\xff\xd9"
# Of a segment that has a length, as libjpeg finds it. D0 to D8 have none; what is below C0 libjpeg
# skips, and reads no length, when it looks for a restart; FF only fills.
_MARKER = re.compile(rb"\xff[^\x00-\xbf\xd0-\xd8\xff]")

_UNREADABLE = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    TypeError,
    IndexError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
)


def open_image(
    value: Any, short_side: int | None = None, *, keep_grey: bool = False
) -> Image.Image:
    """Returns the first frame as RGB: from bytes, or from text in base64.

    TorchServe does not convert, so that CMYK or transparent images fail there, and grey ones where
    three channels are wanted; with `keep_grey` those stay grey: 8 bits, whatever they had, and
    nothing transparent.

    Args:
        value: what the client sent.
        short_side: to which the shorter side will be scaled, in pixels; None if it will not be.
        keep_grey: leave a grey image grey.

    Raises:
        PredictionException: status 400, not an image that this server reads.
    """
    try:
        content = base64.b64decode(value) if isinstance(value, str) else bytes(value)
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if is_too_thin(image.size, short_side):
                raise _unreadable("so thin, it would have too many pixels when resized")
            if content.startswith(_START_OF_JPEG) and _has_too_many_scans(content):
                raise _unreadable("it has too many scans")
            return _to_grey(image) if keep_grey and _is_grey(image) else _to_rgb(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_many_pixels() from error
    except _UNREADABLE as error:
        raise _unreadable(f"not a complete {', '.join(FORMATS)} file, nor base64 of one") from error


def is_plain_jpeg(value: Any, short_side: int | None = None) -> bool:
    """Whether these bytes end as a JPEG does and begin as one in grey or RGB, of a size allowed.

    Only its head is read; the pixels may still turn out to be broken.

    Args:
        value: what the client sent.
        short_side: to which the shorter side will be scaled, in pixels; None if it will not be.
    """
    if not isinstance(value, bytes | bytearray) or not value.endswith(_END_OF_JPEG):
        return False
    if _has_too_many_scans(value):
        return False
    try:
        with Image.open(io.BytesIO(value), formats=("JPEG",)) as image:
            return image.mode in ("RGB", "L") and not is_too_thin(image.size, short_side)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, *_UNREADABLE):
        return False


def _has_too_many_scans(jpeg: bytes | bytearray) -> bool:
    """Whether it goes over its pixels more than MOST_SCANS times, however few bytes that takes.

    Thumbnails, and what follows its end, are not counted.
    """
    # No fewer than there are, and quickly counted.
    if jpeg.count(_START_OF_SCAN) <= MOST_SCANS:
        return False
    scans, start = 0, 0
    while scans <= MOST_SCANS and (marker := _MARKER.search(jpeg, start)):
        if marker[0] == _END_OF_JPEG:
            return False
        scans += marker[0] == _START_OF_SCAN
        # The two bytes of a length count themselves.
        length_bytes = int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")
        start = marker.end() + max(length_bytes, 2)
    return scans > MOST_SCANS


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA") or _is_deep(image)


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I")


def _to_grey(image: Image.Image) -> Image.Image:
    if _is_deep(image):
        # Pillow would clip 16 bits of grey at 255, which is white.
        image = image.point(lambda value: value * (1 / 256))
    image.load()
    return image if image.mode == "L" else image.convert("L")


def _to_rgb(image: Image.Image) -> Image.Image:
    if _is_deep(image):
        return _to_grey(image).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    # Converting copies the pixels in any case.
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def _unreadable(reason: str) -> PredictionException:
    return PredictionException(f"Input is not a readable image: {reason}.", 400)
