"""ObjectDetector with a threshold of its own."""

from ts.torch_handler.object_detector import ObjectDetector


class CarefulDetector(ObjectDetector):
    threshold = 0.75
