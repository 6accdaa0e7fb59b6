"""What the image handlers share: rows of bytes become one batch of pixels."""

import importlib
from typing import Any, ClassVar

import torch
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.images import open_image
from ts.utils.util import PredictionException

EXPLANATION_STEPS = 15


class VisionHandler(BaseHandler):
    """A subclass sets `image_processing`: PIL image → float32 [3, height, width]."""

    image_processing: ClassVar[Any] = None

    def preprocess(self, data: Any) -> Any:
        """float32 [n, 3, height, width] on the device.

        A row holds the image under `data` or `body`: bytes, text in base64, or nested lists of
        numbers that are taken as they are.

        Raises:
            PredictionException: status 400, a row without a readable image.
        """
        return torch.stack(self._images(data)).to(self.device)

    def _images(self, data: Any) -> list[torch.Tensor]:
        return [self._image(row.get("data") or row.get("body")) for row in data]

    def _image(self, value: Any) -> torch.Tensor:
        if isinstance(value, bytes | bytearray | str):
            return self.image_processing(open_image(value))  # type: ignore[no-any-return]
        try:
            return torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            message = "Input is not a readable image: send bytes, base64 or lists of numbers."
            raise PredictionException(message, 400) from error

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Integrated gradients of the pixels for one class.

        Raises:
            PredictionException: status 501, the package captum is not installed.
        """
        try:
            attribution = importlib.import_module("captum.attr")
        except ImportError as error:
            raise PredictionException("Explanations need the package captum.", 501) from error
        gradients = attribution.IntegratedGradients(self.model)
        result = gradients.attribute(tensor_data, target=target, n_steps=EXPLANATION_STEPS)
        return result.tolist()  # type: ignore[no-any-return]
