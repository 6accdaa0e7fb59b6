"""Divides the steps of an `image_processing`: what each image needs, and what a batch can have.

A step over a batch is one kernel on a GPU, and torchvision's Normalize waits for the GPU once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torchvision import transforms  # type: ignore[import-untyped]

# These do the same to each pixel, wherever it is. Not their subclasses, which may not.
_ALIKE = (transforms.ConvertImageDtype, transforms.Normalize)


@dataclass(frozen=True, slots=True)
class PixelSteps:
    """One after the other, `each` and `together` are the whole.

    `before` takes and gives a Pillow image; `each` takes one and gives uint8 [channels, height,
    width]; `together` makes float32 of that, of one image or of a batch.
    """

    before: Any
    each: Any
    together: Any


def divide_steps(processing: Any) -> PixelSteps | None:
    """The steps before ToTensor and those from it on; None where these are not of all pixels alike.

    Until the end the pixels are bytes, a quarter of what there is to copy to a GPU.
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
        each=transforms.Compose([*before, transforms.PILToTensor()]),
        together=transforms.Compose([transforms.ConvertImageDtype(torch.float32), *after]),
    )
