"""Finds out from an `image_processing`, before it runs, which size and colours it wants."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# Steps that keep an image's size, by name: torchvision has each step twice (`transforms.v2`).
_CONVERSIONS = {"ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToTensor"}
_COLOURS = {"Grayscale", "Normalize", "RGB"}
_RGB_CHANNELS = 3
_CONVOLUTION_DIMENSIONS = 4


def short_side_after(processing: Any) -> int | None:
    """Returns to how many pixels these steps scale the short side, at any length of the long one.

    None where they do not, or where that cannot be known.
    """
    for step in getattr(processing, "transforms", [processing]):
        name = type(step).__name__
        if name == "Resize":
            return _only_side(step)
        if name not in _CONVERSIONS | _COLOURS:
            return None
    return None


def _only_side(resize: Any) -> int | None:
    size = getattr(resize, "size", None)
    sides = size if isinstance(size, Sequence) else [size]
    is_only = len(sides) == 1 and getattr(resize, "max_size", None) is None
    return sides[0] if is_only and isinstance(sides[0], int) else None


def keeps_grey(handler: Any) -> bool:
    """Returns whether `image_processing` is given grey images as they came, as in TorchServe.

    They become RGB where they would fail: in the built-in transforms, before a Normalize of three
    means, and before a model whose first convolution takes three channels.
    """
    if _is_built_in(handler):
        return False
    model = getattr(handler, "model", None)  # its constructor may not call ours
    return _RGB_CHANNELS not in {*_means(handler.image_processing), *_inputs(model)}


def _is_built_in(handler: Any) -> bool:
    if "image_processing" in vars(handler):
        return False
    owner = next(cls for cls in type(handler).__mro__ if "image_processing" in vars(cls))
    return owner.__module__.startswith("ts.")


def _means(processing: Any) -> Iterator[int]:
    """Yields the number of means of each Normalize; one mean is for any number of channels."""
    steps = getattr(processing, "transforms", None)
    if steps is None and isinstance(processing, torch.nn.Sequential):
        steps = processing
    for step in steps or ():
        yield from _means(step)
        if hasattr(step, "mean"):
            yield torch.as_tensor(step.mean).numel()


def _inputs(model: Any) -> Iterator[int]:
    """Yields how many channels the first convolution takes, if the model shows one."""
    if not isinstance(model, torch.nn.Module):
        return
    for weight in model.parameters():
        if weight.ndim == _CONVOLUTION_DIMENSIONS:
            yield weight.shape[1]
            return
