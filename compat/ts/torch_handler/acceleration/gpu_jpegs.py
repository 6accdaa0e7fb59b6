"""Decodes the JPEGs of a batch on a GPU, with torchvision's binding of nvJPEG.

Its pixels differ a little from Pillow's, so that an archive has to ask for it.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from ts.torch_handler.acceleration.resizing import short_side_after
from ts.torch_handler.images import is_plain_jpeg

logger = logging.getLogger(__name__)

DECODERS = ("cpu", "gpu")


def read_decoder(name: object) -> str:
    """Returns who decodes, as `jpeg_decoder` in model-config.yaml says.

    Raises:
        ValueError: there is no such one.
    """
    if name not in DECODERS:
        raise ValueError(f"jpeg_decoder in model-config.yaml must be one of {', '.join(DECODERS)}.")
    return str(name)


def on_tensors(processing: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns the same steps for uint8 [3, height, width] as for a Pillow image.

    None if one cannot.
    """
    if not isinstance(processing, transforms.Compose):
        return None
    steps = [
        transforms.ConvertImageDtype(torch.float32)
        if isinstance(step, transforms.ToTensor)
        else step
        for step in processing.transforms
    ]
    # torchvision's own steps take both, as modules; anybody's function may want Pillow's methods.
    takes_tensors = all(isinstance(step, torch.nn.Module) for step in steps)
    return transforms.Compose(steps) if takes_tensors else None


class JpegDecoder:
    """Images as they were sent in, [3, height, width] on the device out, as `processing` gives."""

    def __init__(
        self, processing: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> None:
        self._processing = processing
        self._short_side = short_side_after(processing)
        self._device = device

    def decode(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        """One image per value; None for what is left to Pillow.

        That is whatever is no complete JPEG in grey or RGB within the limit of pixels, and all of a
        batch that the GPU refuses: it names no culprit.
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
            RuntimeError: one of them cannot be decoded, or none can be here.
        """
        if not contents:
            return []
        # A bytearray, because torch warns of memory that it may not write to.
        encoded = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in contents]
        if self._device.type == "cuda":
            # torchvision decodes on streams of its own, which wait for nobody: the memory that they
            # are given may still be read by what this stream has begun.
            torch.cuda.current_stream(self._device).synchronize()
        with warnings.catch_warnings():
            # Since torchvision 0.29, whose successor is a package of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)
        return [self._processing(image) for image in decoded]
