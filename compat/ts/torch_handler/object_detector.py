"""Finds the boxes of things in an image."""

from typing import Any, ClassVar

import torch
from torchvision import transforms  # type: ignore[import-untyped]

from ts.handler_utils.utils import timed
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Turns images into lists of {label: [x1, y1, x2, y2], "score": probability}."""

    threshold = 0.5
    image_processing: ClassVar[Any] = transforms.Compose([transforms.ToTensor()])

    @timed
    def preprocess(self, data: Any) -> Any:
        """Returns float32 [n, 3, height, width], or a list of n images when their sizes differ.

        torchvision's detectors take both; TorchServe fails on images of different sizes.
        """
        images = [image.to(self.device) for image in self._images(data)]
        is_uniform = len({image.shape for image in images}) == 1
        return torch.stack(images) if is_uniform else images

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the model; torchvision's models return {"boxes", "labels", "scores"} per image."""
        if not isinstance(data, list):
            return super().inference(data, *args, **kwargs)
        with torch.inference_mode():
            return self.model([image.to(self.device) for image in data], *args, **kwargs)

    def postprocess(self, data: Any) -> list[Any]:
        """Returns the detections of each image that are at least as likely as `threshold`."""
        # A scripted detector answers (losses, detections). Read here and not in `inference`, as
        # handlers extend this class for models with other tuples, and override this method.
        rows = data[1] if isinstance(data, tuple) else data
        return [self._detections(row) for row in rows]

    def _detections(self, row: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        keep = row["scores"] >= self.threshold
        boxes, labels, scores = (row[key][keep].tolist() for key in ("boxes", "labels", "scores"))
        return [
            map_class_to_label([[box]], self.mapping, [[label]])[0] | {"score": score}
            for box, label, score in zip(boxes, labels, scores, strict=True)
        ]
