"""Reads the image that a client sent, or refuses it with a reason that helps the client."""

import base64
import io
import math
import re
import struct
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ts.utils.util import PredictionException, too_many_pixels

# Pillow would try some forty parsers, EPS among them, which runs Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")

# None, fax, LZW, deflate and PackBits. JPEG within TIFF may have any number of scans, and libtiff's
# other decoders are for files that hardly anybody sends.
_TIFF_COMPRESSIONS = frozenset({1, 3, 4, 5, 8, 32773, 32946})
_TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_TIFF_NUMBERS = (256, 257, 259, 277, 278, 322, 323)
_WIDTH, _HEIGHT, _COMPRESSION, _SAMPLES, _ROWS, _TILE_WIDTH, _TILE_HEIGHT = _TIFF_NUMBERS
_TIFF_OFFSETS = (273, 324)
# Type and count -> format of four bytes. On other types libtiff and Pillow do not always agree.
_TIFF_TYPES = {(3, 1): "H2x", (4, 1): "L"}
# Of strips and tiles of a TIFF. Each takes some 10 µs, even if it holds a single pixel.
_MOST_PIECES = 2**16

# A larger image is scaled down while it is read, if it will be scaled down anyway, and a process
# reads one at a time: decoded, it takes 4 bytes a pixel or more.
LARGE_PIXELS = 25_000_000
_ONE_LARGE_IMAGE = threading.Lock()
# Its short side stays this many times longer than needed: scores then differ less than between two
# qualities of JPEG.
_SPARE_SCALE = 4

# Scans of a JPEG; a large one may have fewer. Encoders write about ten; a scan of a million pixels
# takes 2 ms.
MOST_SCANS = 50

# Steps of `image_processing` that keep an image's size, by name: torchvision has each step twice
# (`transforms.v2`).
_KEEP_SIZE = {
    *("ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToTensor"),
    *("Grayscale", "Normalize", "RGB"),
}

_START_OF_JPEG, _START_OF_SCAN, _END_OF_JPEG = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
# A marker whose segment has a length, as libjpeg finds it. D0 to D8 have none; markers below C0
# are skipped by libjpeg without a length when it looks for a restart; FF only fills.
_MARKER = re.compile(rb"\xff[^\x00-\xbf\xd0-\xd8\xff]")

_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, EOFError, ArithmeticError),
    *(struct.error, zlib.error, SyntaxError),  # the last is Pillow's word for a broken PNG
)


def short_side_after(processing: Any) -> int | None:
    """Returns to how many pixels these steps scale the short side, whatever the long one is.

    None if they do not, or if that cannot be known.
    """
    for step in getattr(processing, "transforms", [processing]):
        name = type(step).__name__
        if name == "Resize":
            size = step.size if isinstance(step.size, Sequence) else [step.size]
            return size[0] if len(size) == 1 and step.max_size is None else None
        if name not in _KEEP_SIZE:
            return None
    return None


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
    content = b""
    try:
        content = base64.b64decode(value) if isinstance(value, str) else bytes(value)
        if content[:2] in (b"II", b"MM"):
            _check_tiff(content)
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if _is_too_thin(image.size, short_side):
                raise _unreadable("so thin, it would have too many pixels when resized")
            if content.startswith(_START_OF_JPEG) and _has_too_many_scans(content, image.size):
                raise _unreadable("it has too many scans")
            if image.format == "TIFF" and image.mode in ("I", "F"):
                raise _unreadable(f"a TIFF of pixels in {image.mode}, whose white is not known")
            if math.prod(image.size) <= LARGE_PIXELS:
                return _converted(image, keep_grey=keep_grey)
            with _ONE_LARGE_IMAGE:
                return _shrunk(image, short_side, keep_grey=keep_grey)
    except _BOMBS as error:
        raise too_many_pixels() from error
    except _UNREADABLE as error:
        # HEIC and AVIF begin so, behind four bytes.
        reason = "HEIC or AVIF, not" if content[4:8] == b"ftyp" else "not"
        raise _unreadable(
            f"{reason} a complete {', '.join(FORMATS)} file, nor base64 of one"
        ) from error


def is_plain_jpeg(value: Any, short_side: int | None = None) -> bool:
    """Returns whether head and end are those of a JPEG in grey or RGB that is not large.

    The pixels may still turn out to be broken. The arguments are as for `open_image`.
    """
    if not isinstance(value, bytes | bytearray) or not value.endswith(_END_OF_JPEG):
        return False
    try:
        with Image.open(io.BytesIO(value), formats=("JPEG",)) as image:
            return (
                image.mode in ("RGB", "L")
                and math.prod(image.size) <= LARGE_PIXELS
                and not _is_too_thin(image.size, short_side)
                and not _has_too_many_scans(value, image.size)
            )
    except (*_BOMBS, *_UNREADABLE):
        return False


def _converted(image: Image.Image, *, keep_grey: bool) -> Image.Image:
    mode = "RGB"
    if image.mode.startswith("I"):
        # Pillow would clip 16 bits of grey at 255, which is white.
        image.info.pop("transparency", None)
        image = image.convert("I") if image.mode == "I;16B" else image
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if keep_grey and image.mode in ("1", "L", "LA"):
        mode = "L"
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    # Converting copies the pixels in any case.
    image.load()
    return image if image.mode == mode else image.convert(mode)


def _shrunk(image: Image.Image, short_side: int | None, *, keep_grey: bool) -> Image.Image:
    width, height = image.size
    side = _SPARE_SCALE * short_side if short_side else min(image.size)
    scale = side / min(image.size)
    if scale >= 1:
        return _converted(image, keep_grey=keep_grey)
    # A JPEG is decoded at a half, quarter or eighth; the box is the picture without its padding.
    drafted = image.draft(None, (side, side))
    size = round(width * scale), round(height * scale)
    box = drafted[1] if drafted else None
    converted = _converted(image, keep_grey=keep_grey)
    return converted.resize(size, Image.Resampling.BICUBIC, box)


def _check_tiff(content: bytes) -> None:
    """Refuses a first page that would take more time or memory than its pixels say.

    libtiff decodes a whole tile, even if the image has little of it; Pillow decodes a strip as
    often as the file names it.
    """
    order = _TIFF_ORDERS[content[:4]]
    (start,) = struct.unpack_from(f"{order}L", content, 4)
    (count,) = struct.unpack_from(f"{order}H", content, start)
    table = content[start + 2 : start + 2 + 12 * count]
    entries = list(struct.iter_unpack(f"{order}HHL4s", table))
    lengths = {tag: length for tag, _, length, _ in entries}
    values = {
        tag: struct.unpack(order + _TIFF_TYPES[kind, length], value)[0]
        for tag, kind, length, value in entries
        if tag in _TIFF_NUMBERS
    }
    if values.get(_COMPRESSION, 1) not in _TIFF_COMPRESSIONS:
        raise _unreadable(f"no TIFF of compression {values[_COMPRESSION]} is read")
    width, height = values[_WIDTH], values[_HEIGHT]
    rows = min(values.get(_ROWS, height), height)
    across, down = values.get(_TILE_WIDTH, width), values.get(_TILE_HEIGHT, rows)
    pieces = -(-width // across) * -(-height // down)
    is_odd = len(lengths) != count or sum(lengths.values()) > len(content)
    is_bomb = pieces > _MOST_PIECES or across * down > max(LARGE_PIXELS, width * height)
    named = max(lengths.get(tag, 0) for tag in _TIFF_OFFSETS)
    if is_odd or is_bomb or named > pieces * values.get(_SAMPLES, 1):
        raise _unreadable("a TIFF whose strips or tiles do not fit its size")


def _is_too_thin(size: tuple[int, int], short_side: int | None) -> bool:
    if short_side is None or not Image.MAX_IMAGE_PIXELS:
        return False
    square = short_side**2
    # Any image may be ten times longer than wide. Otherwise a limit of pixels below the model's own
    # size would refuse all images.
    limit = max(Image.MAX_IMAGE_PIXELS, 10 * square)
    return square * max(size) > limit * min(size)


def _has_too_many_scans(jpeg: bytes | bytearray, size: tuple[int, int]) -> bool:
    """Returns whether a JPEG has more than MOST_SCANS scans; a large one may have fewer.

    Scans of thumbnails, and scans behind the end, do not count.
    """
    # A quick count, which is never too low.
    most = min(MOST_SCANS, MOST_SCANS * LARGE_PIXELS // math.prod(size))
    if jpeg.count(_START_OF_SCAN) <= most:
        return False
    scans, start = 0, 0
    while scans <= most and (marker := _MARKER.search(jpeg, start)):
        if marker[0] == _END_OF_JPEG:
            return False
        scans += marker[0] == _START_OF_SCAN
        # The two bytes of a length count themselves.
        length_bytes = int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")
        start = marker.end() + max(length_bytes, 2)
    return scans > most


def _unreadable(reason: str) -> PredictionException:
    return PredictionException(f"Input is not a readable image: {reason}.", 400)
