"""The batch handler: PNG bytes in, digit and probability out, one forward pass per batch.

A class with `initialize` and `handle`, the only one of its file, is one of the two forms that
TorchServe knows; this one imports nothing of `ts`, so it serves there and here unchanged.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model import DigitNet
from PIL import Image

SIDE_PIXELS = 8
# Checked before the pixels are unpacked: a small file may hold a huge picture.
MAX_SIDE_PIXELS = 1024
BAD_REQUEST = 400
# The second is only a warning, unless the server makes it an error.
TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class DigitsHandler:
    """Reads any number of images, answers each with its most likely digit.

    An unreadable image is answered with status 400; its neighbours in the batch are not touched.
    """

    def __init__(self) -> None:
        self._network = DigitNet()
        self._device = torch.device("cpu")

    def initialize(self, context: Any) -> None:
        """Loads the weights onto the worker's device."""
        properties: Mapping[str, Any] = context.system_properties
        gpu_id = properties.get("gpu_id")
        if gpu_id is not None and torch.cuda.is_available():
            self._device = torch.device("cuda", int(gpu_id))
        else:
            # Images this small are not worth waking a second thread for.
            torch.set_num_threads(1)
        weights = Path(properties["model_dir"]) / context.manifest["model"]["serializedFile"]
        state = torch.load(weights, map_location=self._device, weights_only=True)
        self._network.load_state_dict(state)
        self._network.to(self._device).eval()

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Answers each row, in order; header `x-batch-size` says how many rows ran together."""
        answers: list[dict[str, Any]] = [{} for _ in data]
        images: dict[int, np.ndarray] = {}
        for index, row in enumerate(data):
            context.set_response_header(index, "x-batch-size", str(len(data)))
            context.set_response_content_type(index, "application/json")
            try:
                images[index] = read_image(row.get("data") or row.get("body"))
            except ValueError as error:
                context.set_response_status(BAD_REQUEST, "Bad Request", index)
                answers[index] = {"error": str(error)}
        if images:
            for index, answer in zip(images, self._classify(list(images.values())), strict=True):
                answers[index] = answer
        return answers

    def _classify(self, images: Sequence[np.ndarray]) -> list[dict[str, Any]]:
        batch = torch.from_numpy(np.stack(images)).unsqueeze(1).to(self._device)
        with torch.inference_mode():
            probabilities = self._network(batch).softmax(dim=1).cpu()
        return [
            {
                "digit": int(row.argmax()),
                "probability": round(float(row.max()), 4),
                "probabilities": [round(value, 4) for value in row.tolist()],
            }
            for row in probabilities
        ]


def read_image(content: Any) -> np.ndarray:
    """Decodes a picture to float32 [8, 8], 0 (paper, black) to 1 (ink, white).

    Raises:
        ValueError: not bytes, not a PNG, damaged, or too large; the message is for the sender.
    """
    if not isinstance(content, bytes | bytearray) or not content:
        raise ValueError("send the bytes of a PNG image")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            is_too_large = max(image.size) > MAX_SIDE_PIXELS
            grey = None if is_too_large else image.convert("L")
    # Pillow raises SyntaxError for damaged chunks, and others of these for odd sizes and modes.
    except (OSError, SyntaxError, ValueError, *TOO_LARGE) as error:
        raise ValueError("the body is not a readable PNG image") from error
    if grey is None:
        raise ValueError(f"the image is larger than {MAX_SIDE_PIXELS} pixels a side")
    if grey.size != (SIDE_PIXELS, SIDE_PIXELS):
        grey = grey.resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BOX)
    return np.asarray(grey, dtype=np.float32) / 255
