"""Names the class of each pixel of an image."""

from typing import Any, ClassVar

import torch

from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Turns images into [224][224][2]: class number and its probability for each pixel."""

    has_one_size: ClassVar[bool] = True
    image_processing: ClassVar[Any] = ImageClassifier.image_processing

    def postprocess(self, data: Any) -> list[Any]:
        """Turns {"out": float [n, classes, height, width]} into n times [height][width][2]."""
        probabilities = torch.nn.functional.softmax(data["out"], dim=1)
        best, classes = torch.max(probabilities, dim=1)
        return torch.stack([classes.type(best.dtype), best], dim=3).tolist()
