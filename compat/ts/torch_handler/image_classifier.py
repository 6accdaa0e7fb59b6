"""Names the classes that a model sees in an image."""

from typing import Any, ClassVar

import torch
from torchvision import transforms  # type: ignore[import-untyped]

from ts.handler_utils.utils import timed
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Turns images into {label: probability} of the most likely classes, most likely first."""

    topk = 5
    has_one_size: ClassVar[bool] = True
    # The means and deviations of ImageNet, as in torchvision's own training recipes.
    image_processing: ClassVar[Any] = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        probabilities = torch.nn.functional.softmax(data, dim=1)
        count = min(self.topk, probabilities.shape[1])
        values, classes = torch.topk(probabilities, count, dim=1)
        return map_class_to_label(values.tolist(), self.mapping, classes.tolist())
