"""What an image's shape may cost: thin ones become long when their short side is scaled."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

# By name: torchvision has each step twice (`transforms.v2`).
_SAME_SIZE = frozenset(
    {
        "ConvertImageDtype",
        "Grayscale",
        "Normalize",
        "PILToTensor",
        "RGB",
        "ToDtype",
        "ToImage",
        "ToTensor",
    }
)

# Times as long as wide. Otherwise a limit of pixels below the model's own size would refuse all.
_NEVER_TOO_THIN = 10


def short_side_after(processing: Any) -> int | None:
    """To how many pixels these steps scale the short side, whatever becomes of the long one.

    None where they do not, or that cannot be known.
    """
    for step in getattr(processing, "transforms", [processing]):
        name = type(step).__name__
        if name == "Resize":
            return _only_side(step)
        if name not in _SAME_SIZE:
            return None
    return None


def is_too_thin(size: tuple[int, int], short_side: int | None) -> bool:
    """Returns whether an image of this size has more pixels than are allowed once it is scaled.

    Args:
        size: width and height, in pixels.
        short_side: to which the shorter of them will be scaled, in pixels; None if it will not be.
    """
    if short_side is None or not Image.MAX_IMAGE_PIXELS:
        return False
    square = short_side**2
    limit = max(Image.MAX_IMAGE_PIXELS, _NEVER_TOO_THIN * square)
    return square * max(size) > limit * min(size)


def _only_side(resize: Any) -> int | None:
    size = getattr(resize, "size", None)
    sides = size if isinstance(size, Sequence) else [size]
    is_only = len(sides) == 1 and getattr(resize, "max_size", None) is None
    return sides[0] if is_only and isinstance(sides[0], int) else None
