"""Reads the images of a batch: threads decode, or a GPU does, if the archive asks for it."""

import functools
import io
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from ts.handler_utils.thread_state import with_own_state
from ts.torch_handler.image_steps import short_side_after
from ts.torch_handler.images import is_plain_jpeg

logger = logging.getLogger(__name__)

DECODERS = ("cpu", "gpu")
FEWEST_THREADS, MOST_THREADS = 4, 16
# These treat a stack of images of one size as they treat each alone.
_ALIKE = frozenset(
    {
        transforms.CenterCrop,
        transforms.ConvertImageDtype,
        transforms.Normalize,
        transforms.Resize,
    }
)


class ImageBatches:
    """Reads and stacks images for a `VisionHandler`, by several threads or by the GPU.

    Args:
        handler: its `device` and `image_processing` are read for each batch, because a handler may
            set them at any time.
        read: returns the tensor of one value.
    """

    def __init__(self, handler: Any, read: Callable[[Any], torch.Tensor]) -> None:
        self._handler = handler
        self._read = read
        self.gpu_jpegs: JpegDecoder | None = None

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # Reading a JPEG takes some 8 ms and lets other threads run.
        return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")

    @property
    def _is_on_gpu(self) -> bool:
        # A handler may have set its device as text, or none.
        device = self._handler.device
        return device is not None and torch.device(device).type == "cuda"

    def read(self, values: list[Any]) -> list[torch.Tensor]:
        images = self.gpu_jpegs.decode(values) if self.gpu_jpegs else [None] * len(values)
        left = [value for value, image in zip(values, images, strict=True) if image is None]
        if len(left) == 1:
            others = iter([self._read(left[0])])
        else:
            # One core each: otherwise each of these threads would start threads of its own for the
            # arithmetic after the decoding.
            others = iter(list(self._threads.map(with_own_state(self._read, cores=1), left)))
        return [next(others) if image is None else image for image in images]

    def stacked(self, images: list[torch.Tensor]) -> torch.Tensor:
        device = self._handler.device
        if not self._is_on_gpu or any(image.is_cuda for image in images):
            return torch.stack([image.to(device) for image in images])
        # From pinned memory the GPU copies without waiting; torch reuses it after the copy.
        shape = (len(images), *images[0].shape)
        pinned = torch.empty(shape, dtype=images[0].dtype, pin_memory=True)
        return torch.stack(images, out=pinned).to(device, non_blocking=True)

    def decode_on_gpu(self, *, keeps_grey: bool) -> None:
        """Lets the GPU decode JPEGs from now on, if it can; the log says why it cannot.

        The first image takes long: nvJPEG is loaded for it.
        """
        # The GPU makes RGB of grey.
        processing = None if keeps_grey else on_tensors(self._handler.image_processing)
        if not self._is_on_gpu or processing is None:
            why = (
                "image_processing may want Pillow's images" if self._is_on_gpu else "there is none"
            )
            logger.warning("images are not decoded by the GPU: %s", why)
            return
        decoder = JpegDecoder(processing, torch.device(self._handler.device))
        Image.new("RGB", (256, 256), (128, 128, 128)).save(grey := io.BytesIO(), "JPEG")
        if decoder.decode([grey.getvalue()])[0] is not None:
            self.gpu_jpegs = decoder


def on_tensors(processing: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns the same steps for uint8 [3, height, width]; None if one needs a Pillow image."""
    if not isinstance(processing, transforms.Compose):
        return None
    steps = [
        transforms.ConvertImageDtype(torch.float32)
        if isinstance(step, transforms.ToTensor)
        else step
        for step in processing.transforms
    ]
    # torchvision's own steps are modules and take both; other functions may want Pillow's methods.
    takes_tensors = all(isinstance(step, torch.nn.Module) for step in steps)
    return transforms.Compose(steps) if takes_tensors else None


class JpegDecoder:
    """Turns images as they were sent into [3, height, width] on the device, by `processing`.

    It uses torchvision's binding of nvJPEG, whose pixels differ a little from Pillow's.
    """

    def __init__(
        self, processing: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> None:
        self._processing = processing
        self._short_side = short_side_after(processing)
        # Other steps may be random for each image.
        self._is_alike = all(type(step) in _ALIKE for step in getattr(processing, "transforms", ()))
        self._device = device

    def decode(self, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        """Returns one image per value; None leaves a value to Pillow.

        The GPU gets complete JPEGs in grey or RGB within the limit of pixels, Pillow the rest. When
        the GPU refuses an image, Pillow gets the whole batch, as the GPU does not say which it was.
        """
        are_plain = [is_plain_jpeg(value, self._short_side) for value in values]
        # A bytearray, because torch warns of memory that it may not write to.
        encoded = [
            torch.frombuffer(bytearray(value), dtype=torch.uint8)
            for value, is_plain in zip(values, are_plain, strict=True)
            if is_plain
        ]
        if not encoded:
            return [None] * len(values)
        try:
            images = iter(self._decoded(encoded))
        except Exception as error:  # no nvJPEG, a broken image, or whatever a step raises
            logger.warning("images=%d are not decoded by the GPU: %s", len(encoded), error)
            return [None] * len(values)
        return [next(images) if is_plain else None for is_plain in are_plain]

    def _decoded(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._device.type == "cuda":
            # torchvision decodes on streams of its own, which do not wait until work of this stream
            # has read the memory that they are given.
            torch.cuda.current_stream(self._device).synchronize()
        with warnings.catch_warnings():
            # Deprecated since torchvision 0.29, in favour of a package of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)
        if not self._is_alike:
            return [self._processing(image) for image in decoded]
        # A step over many images is one kernel, and Normalize waits for the GPU once.
        by_size = defaultdict(list)
        for index, image in enumerate(decoded):
            by_size[image.shape].append(index)
        processed = {}
        for indices in by_size.values():
            images = self._processing(torch.stack([decoded[index] for index in indices]))
            processed.update(zip(indices, images, strict=True))
        return [processed[index] for index in range(len(decoded))]


def thread_count() -> int:
    """Returns how many threads read images: a worker's share of the cores, which may feed a GPU.

    At least FEWEST_THREADS, as workers seldom read at the same moment.
    """
    fewest = min(FEWEST_THREADS, os.cpu_count() or 1)
    return min(MOST_THREADS, max(fewest, torch.get_num_threads()))
