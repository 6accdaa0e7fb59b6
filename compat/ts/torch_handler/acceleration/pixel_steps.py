"""Divides an `image_processing` into steps for each image and steps for a whole batch.

A step over a batch is one kernel on a GPU, and torchvision's Normalize waits for the GPU once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageMode
from torchvision import transforms  # type: ignore[import-untyped]

# These do the same to each pixel, wherever it is. Their subclasses may not.
_ALIKE = (transforms.ConvertImageDtype, transforms.Normalize)

_AS_BYTES = transforms.PILToTensor()


@dataclass(frozen=True, slots=True)
class PixelSteps:
    """An `image_processing` in two halves: `each`, for one image, then `together`, for a batch.

    `before` has the steps before ToTensor, which take a Pillow image and may give anything that
    ToTensor takes; `rest` has ToTensor and the steps behind it. `together` does the same as `rest`
    to uint8 [channels, height, width], one image or a batch.
    """

    before: Any
    rest: Any
    together: Any

    def each(self, image: Image.Image) -> torch.Tensor:
        """Returns uint8 for `together`; after all steps where the pixels are not bytes any more."""
        given = self.before(image)
        if _has_bytes(given):
            return _AS_BYTES(given)  # type: ignore[no-any-return]
        return self.rest(given)  # type: ignore[no-any-return]


def divide_steps(processing: Any) -> PixelSteps | None:
    """Returns the two halves; None without a ToTensor, or if a later step is not alike for pixels.

    The first half leaves bytes, a quarter of the floats that would be copied to the GPU.
    """
    steps = list(processing.transforms) if isinstance(processing, transforms.Compose) else []
    places = [place for place, step in enumerate(steps) if type(step) is transforms.ToTensor]
    if len(places) != 1:
        return None
    before, after = steps[: places[0]], steps[places[0] + 1 :]
    if not all(type(step) in _ALIKE for step in after):
        return None
    return PixelSteps(
        before=transforms.Compose(before),
        rest=transforms.Compose(steps[places[0] :]),
        together=transforms.Compose([transforms.ConvertImageDtype(torch.float32), *after]),
    )


def _has_bytes(given: Any) -> bool:
    # ToTensor divides only bytes by 255. A step may turn some images, not known before, into arrays
    # or into numbers of another kind.
    return isinstance(given, Image.Image) and ImageMode.getmode(given.mode).typestr == "|u1"
