"""The built-in image classifier, which fails where it would quietly decode by Pillow instead.

Archived by `benchmarks.gpu`: a figure under "decoded by gpu" is of nothing else.
"""

from typing import Any

from ts.torch_handler.image_classifier import ImageClassifier


class StrictClassifier(ImageClassifier):
    def initialize(self, context: Any) -> None:
        super().initialize(context)
        if self._fast_batches.gpu_jpegs is None:
            raise RuntimeError("the GPU decodes no JPEGs here; the worker's log says why")

    def _image(self, value: Any) -> Any:
        raise RuntimeError("an image is left to Pillow")
