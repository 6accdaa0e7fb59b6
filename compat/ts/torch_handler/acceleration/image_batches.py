"""Turns the images of a batch into pixels: several threads decode, and a GPU does what it can.

A step over a batch is one kernel on a GPU, and torchvision's Normalize waits for the GPU once.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageMode
from torchvision import transforms  # type: ignore[import-untyped]

from ts.handler_utils.thread_state import with_own_state
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors, tried_decoder

FEWEST_DECODERS, MOST_DECODERS = 4, 16


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


class ImageBatches:
    """Does the steps of `VisionHandler` over a batch, faster.

    Args:
        handler: has `device` and `image_processing`. Both are asked for anew each time, because a
            handler may set them whenever it likes.
        read: returns the tensor of one value, by these steps.
    """

    def __init__(self, handler: Any, read: Callable[[Any, Any], torch.Tensor]) -> None:
        self._handler = handler
        self._read = read
        self.gpu_jpegs: JpegDecoder | None = None

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # Reading a JPEG takes some 8 ms and lets other threads run.
        return ThreadPoolExecutor(decoder_count(), thread_name_prefix="decode")

    def decode_on_gpu(self, *, keeps_grey: bool) -> None:
        """Lets the GPU decode JPEGs from now on, if it can; the log says why it cannot."""
        before = self.steps.before if self.steps else self._handler.image_processing
        # The GPU makes RGB of grey.
        processing = None if keeps_grey else on_tensors(before)
        self.gpu_jpegs = tried_decoder(processing, self._handler.device)

    def read(self, values: list[Any]) -> list[torch.Tensor]:
        """Returns one tensor per value, in their order.

        Raises:
            PredictionException: status 400, a value is not a readable image.
        """
        if self.gpu_jpegs is None:
            return self._decoded(values)
        images = self.gpu_jpegs.decode(values)
        left = [value for value, image in zip(values, images, strict=True) if image is None]
        others = iter(self._decoded(left))
        return [next(others) if image is None else image for image in images]

    def _decoded(self, values: list[Any]) -> list[torch.Tensor]:
        if len(values) == 1:
            return [self._image(value) for value in values]
        # Each neighbour has a core of its own: otherwise each of these threads would start a team
        # for the arithmetic behind the decoding.
        return list(self._threads.map(with_own_state(self._image, cores=1), values))

    def _image(self, value: Any) -> torch.Tensor:
        steps = self.steps
        return self._read(value, steps.each if steps else self._handler.image_processing)

    def stacked(self, images: list[torch.Tensor]) -> torch.Tensor:
        """Returns the batch on the device, after its last step."""
        if len({image.dtype for image in images}) > 1:  # lists of numbers among them
            return torch.stack(self.finished(images))
        batch = self._on_device(images)
        steps = self.steps if batch.dtype == torch.uint8 else None
        return steps.together(batch) if steps else batch  # type: ignore[no-any-return]

    def finished(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns each image on the device, after its last step."""
        steps, found = self.steps, [image.to(self._handler.device) for image in images]
        if steps is None:
            return found
        return [steps.together(one) if one.dtype == torch.uint8 else one for one in found]

    @property
    def steps(self) -> PixelSteps | None:
        """Steps that a GPU does to all images at once; None without a GPU or such steps.

        On a processor each image is one thread's work.
        """
        return divide_steps(self._handler.image_processing) if self._is_on_gpu else None

    @property
    def _is_on_gpu(self) -> bool:
        # A handler may have set its device as text, or none.
        device = self._handler.device
        return device is not None and torch.device(device).type == "cuda"

    def _on_device(self, images: list[torch.Tensor]) -> torch.Tensor:
        device = self._handler.device
        if not self._is_on_gpu:
            return torch.stack(images).to(device)
        if any(image.is_cuda for image in images):
            return torch.stack([image.to(device) for image in images])
        # The GPU copies by itself from pinned memory. torch hands this memory out again when the
        # copy is done.
        shape = (len(images), *images[0].shape)
        pinned = torch.empty(shape, dtype=images[0].dtype, pin_memory=True)
        return torch.stack(images, out=pinned).to(device, non_blocking=True)


def decoder_count() -> int:
    """Returns how many threads read images: a worker's share of the cores, which may feed a GPU.

    Or a few more, as workers seldom read at the same moment, and none of these threads spins.
    """
    fewest = min(FEWEST_DECODERS, os.cpu_count() or 1)
    return min(MOST_DECODERS, max(fewest, torch.get_num_threads()))
