"""The built-in image classifier, which fails where it would quietly decode by Pillow instead.

Archived by `benchmarks.gpu`: a figure under "decoded by the GPU" is of nothing else.
"""

from typing import Any

from ts.torch_handler.image_classifier import ImageClassifier


class StrictClassifier(ImageClassifier):
    """With `jpeg_decoder: gpu` the GPU decodes every image, or the handler raises RuntimeError."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        if self._is_for_gpu() and self._fast_batches.gpu_jpegs is None:
            raise RuntimeError("the GPU decodes no JPEGs here; the worker's log says why")

    def _image(self, value: Any, processing: Any) -> Any:
        if self._is_for_gpu():
            raise RuntimeError("an image is left to Pillow")
        return super()._image(value, processing)

    def _is_for_gpu(self) -> bool:
        return bool(self.model_yaml_config.get("jpeg_decoder") == "gpu")
