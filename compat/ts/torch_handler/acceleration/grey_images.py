"""Whether a handler takes grey images as they are, or as RGB."""

from collections.abc import Iterator
from typing import Any

import torch

CHANNELS_OF_RGB = 3
CONVOLUTION_DIMENSIONS = 4


def keeps_grey(handler: Any) -> bool:
    """Whether `image_processing` is given grey images as they came, which TorchServe always does.

    They become RGB where they would fail there: in the built-in transforms, before a Normalize of
    three means, and before a model whose first convolution takes three channels.
    """
    if _is_built_in(handler):
        return False
    model = getattr(handler, "model", None)  # its constructor may not call ours
    return CHANNELS_OF_RGB not in {*_means(handler.image_processing), *_inputs(model)}


def _is_built_in(handler: Any) -> bool:
    if "image_processing" in vars(handler):
        return False
    owner = next(cls for cls in type(handler).__mro__ if "image_processing" in vars(cls))
    return owner.__module__.startswith("ts.")


def _means(processing: Any) -> Iterator[int]:
    """Returns how many means each Normalize among the steps has.

    One is for any number of channels.
    """
    steps = getattr(processing, "transforms", None)
    if steps is None and isinstance(processing, torch.nn.Sequential):
        steps = processing
    for step in steps or ():
        yield from _means(step)
        if hasattr(step, "mean"):
            yield torch.as_tensor(step.mean).numel()


def _inputs(model: Any) -> Iterator[int]:
    """Returns how many channels the first convolution takes.

    Nothing where there is none to be seen.
    """
    if not isinstance(model, torch.nn.Module):
        return
    for weight in model.parameters():
        if weight.ndim == CONVOLUTION_DIMENSIONS:
            yield weight.shape[1]
            return
