"""Turns the images of a batch into pixels: several threads decode, and a GPU does what it can."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ts.handler_utils.thread_state import with_own_state
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors, tried_decoder
from ts.torch_handler.acceleration.pixel_steps import PixelSteps, divide_steps

FEWEST_DECODERS, MOST_DECODERS = 4, 16


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
