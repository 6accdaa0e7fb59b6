"""Turns what a client sent into an image, or refuses it with a reason that helps the client."""

import base64
import io
import re
import struct
import zlib
from typing import Any

from PIL import Image

from ts.torch_handler.pixel_limit import too_many_pixels
from ts.utils.util import PredictionException

# Pillow would try some forty parsers, EPS among them, which runs Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")

# How many times as long as wide any image may be. Otherwise a limit of pixels below the model's own
# size would refuse all images.
_NEVER_TOO_THIN = 10

# Of a JPEG. Encoders write some ten; each takes up to 50 ms at the default limit of pixels.
MOST_SCANS = 50

_START_OF_JPEG = b"\xff\xd8"
_START_OF_SCAN = b"\xff\xda"
_END_OF_JPEG = b"\xff\xd9"
# The marker of a segment that has a length, as libjpeg finds it. D0 to D8 have none; libjpeg skips
# markers below C0 without a length when it looks for a restart; FF only fills.
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

    TorchServe does not convert, so that CMYK or transparent images fail, and grey ones where the
    model wants three channels.

    Args:
        value: what the client sent.
        short_side: the length to which the shorter side will be scaled, in pixels; None: it is not.
        keep_grey: leaves a grey image grey, with 8 bits per pixel and nothing transparent.

    Raises:
        PredictionException: status 400, not an image that this server reads.
    """
    try:
        content = base64.b64decode(value) if isinstance(value, str) else bytes(value)
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if _is_too_thin(image.size, short_side):
                raise _unreadable("so thin, it would have too many pixels when resized")
            if content.startswith(_START_OF_JPEG) and _has_too_many_scans(content):
                raise _unreadable("it has too many scans")
            return _to_grey(image) if keep_grey and _is_grey(image) else _to_rgb(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_many_pixels() from error
    except _UNREADABLE as error:
        raise _unreadable(f"not a complete {', '.join(FORMATS)} file, nor base64 of one") from error


def is_plain_jpeg(value: Any, short_side: int | None = None) -> bool:
    """Returns whether these bytes are a JPEG in grey or RGB, of an allowed size, by head and end.

    The pixels may still turn out to be broken. The arguments are those of `open_image`.
    """
    if not isinstance(value, bytes | bytearray) or not value.endswith(_END_OF_JPEG):
        return False
    if _has_too_many_scans(value):
        return False
    try:
        with Image.open(io.BytesIO(value), formats=("JPEG",)) as image:
            return image.mode in ("RGB", "L") and not _is_too_thin(image.size, short_side)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, *_UNREADABLE):
        return False


def _is_too_thin(size: tuple[int, int], short_side: int | None) -> bool:
    """Returns whether the image has more pixels than are allowed once its short side is scaled."""
    if short_side is None or not Image.MAX_IMAGE_PIXELS:
        return False
    square = short_side**2
    limit = max(Image.MAX_IMAGE_PIXELS, _NEVER_TOO_THIN * square)
    return square * max(size) > limit * min(size)


def _has_too_many_scans(jpeg: bytes | bytearray) -> bool:
    """Returns whether a JPEG goes over its pixels more than MOST_SCANS times.

    Scans of thumbnails, and those behind the end, do not count.
    """
    # Counts at least all scans, and is quick.
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
