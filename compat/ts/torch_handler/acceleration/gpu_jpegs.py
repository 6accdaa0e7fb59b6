"""Decodes the JPEGs of a batch on a GPU, with torchvision's binding of nvJPEG.

The pixels differ a little from Pillow's, so an archive has to ask for this decoder.
"""

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from ts.torch_handler.image_steps import short_side_after
from ts.torch_handler.images import is_plain_jpeg

logger = logging.getLogger(__name__)

DECODERS = ("cpu", "gpu")


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
    """Turns images as they were sent into [3, height, width] on the device, by `processing`."""

    def __init__(
        self, processing: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> None:
        self._processing = processing
        self._short_side = short_side_after(processing)
        self._device = device

    def decode(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        """Returns one image per value; None leaves a value to Pillow.

        Pillow gets all but complete JPEGs in grey or RGB within the limit of pixels. When the GPU
        refuses an image, Pillow gets the whole batch, as the GPU does not say which image it was.
        """
        chosen = [
            index for index, value in enumerate(values) if is_plain_jpeg(value, self._short_side)
        ]
        images: list[torch.Tensor | None] = [None] * len(values)
        try:
            decoded = self.decode_all([values[index] for index in chosen])
        except RuntimeError as error:
            logger.warning("images=%d are not decoded by the GPU: %s", len(chosen), error)
            return images
        for index, image in zip(chosen, decoded, strict=True):
            images[index] = image
        return images

    def decode_all(self, contents: Sequence[bytes | bytearray]) -> list[torch.Tensor]:
        """Returns the images of JPEGs.

        Raises:
            RuntimeError: one JPEG cannot be decoded, or this machine decodes none.
        """
        if not contents:
            return []
        # A bytearray, because torch warns of memory that it may not write to.
        encoded = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in contents]
        if self._device.type == "cuda":
            # torchvision decodes on streams of its own, which do not wait for this one, whose work
            # may still read the memory that they are given.
            torch.cuda.current_stream(self._device).synchronize()
        with warnings.catch_warnings():
            # Deprecated since torchvision 0.29, in favour of a package of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)
        return [self._processing(image) for image in decoded]


def tried_decoder(
    processing: Callable[[torch.Tensor], torch.Tensor] | None, device: torch.device
) -> JpegDecoder | None:
    """Returns a decoder that has decoded one image; None, with a reason in the log, if it cannot.

    The first image takes long: nvJPEG is loaded for it.
    """
    if device.type != "cuda" or processing is None:
        why = "there is none" if processing else "image_processing may want Pillow's images"
        logger.warning("images are not decoded by the GPU: %s", why)
        return None
    decoder = JpegDecoder(processing, device)
    Image.new("RGB", (256, 256), (128, 128, 128)).save(grey := io.BytesIO(), "JPEG")
    try:
        decoder.decode_all([grey.getvalue()])
    except Exception as error:  # no nvJPEG, or whatever a step raises
        logger.warning("images are not decoded by the GPU: %r", error)
        return None
    return decoder
