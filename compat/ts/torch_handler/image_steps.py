"""Finds out from an `image_processing`, before it runs, which size and colours it needs."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# Steps that keep an image's size, by name: torchvision has each step twice (`transforms.v2`).
_CONVERSIONS = {"ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToTensor"}
_COLOURS = {"Grayscale", "Normalize", "RGB"}
_RGB_CHANNELS = 3
_CONVOLUTION_DIMENSIONS = 4


def short_side_after(processing: Any) -> int | None:
    """Returns to how many pixels these steps scale the short side, whatever the long one is.

    None if they do not, or if that cannot be known.
    """
    for step in getattr(processing, "transforms", [processing]):
        name = type(step).__name__
        if name == "Resize":
            size = step.size if isinstance(step.size, Sequence) else [step.size]
            return size[0] if len(size) == 1 and step.max_size is None else None
        if name not in _CONVERSIONS | _COLOURS:
            return None
    return None


def keeps_grey(handler: Any) -> bool:
    """Returns whether grey images stay grey for `image_processing`, as in TorchServe.

    They become RGB where grey ones would fail: in the built-in transforms, before a Normalize of
    three means, and before a model whose first convolution takes three channels.
    """
    if "image_processing" not in vars(handler):
        owner = next(cls for cls in type(handler).__mro__ if "image_processing" in vars(cls))
        if owner.__module__.startswith("ts."):
            return False
    model = getattr(handler, "model", None)  # its constructor may not call ours
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    channels = next((w.shape[1] for w in weights if w.ndim == _CONVOLUTION_DIMENSIONS), None)
    return _RGB_CHANNELS not in {channels, *_means(handler.image_processing)}


def _means(processing: Any) -> Iterator[int]:
    """Yields the number of means of each Normalize; one mean is for any number of channels."""
    steps = getattr(processing, "transforms", None)
    if steps is None and isinstance(processing, torch.nn.Sequential):
        steps = processing
    for step in steps or ():
        yield from _means(step)
        if hasattr(step, "mean"):
            yield torch.as_tensor(step.mean).numel()
