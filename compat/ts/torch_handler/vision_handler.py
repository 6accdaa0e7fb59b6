"""Turns rows of bytes into one batch of pixels: the base of the image handlers."""

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from PIL import Image

from ts.handler_utils.utils import config_of, timed
from ts.torch_handler import acceleration
from ts.torch_handler.base_handler import BaseHandler, captum_attributions
from ts.torch_handler.images import open_image, short_side_after
from ts.torch_handler.weights import give_back_memory
from ts.utils.util import PredictionException

EXPLANATION_STEPS = 15
_RGB_CHANNELS, _CONVOLUTION_DIMENSIONS = 3, 4


class VisionHandler(BaseHandler):
    """Needs a subclass that sets `image_processing`: PIL image → float32 [3, height, width]."""

    image_processing: ClassVar[Any] = None

    # Whether all images become tensors of one size, so that the model can be prepared for it.
    has_one_size: ClassVar[bool] = False

    def initialize(self, context: Any) -> None:
        """Loads the model onto its device and prepares it where that is known to be safe.

        By default, only the built-in handlers' models are prepared: a handler of your own may look
        into its model. `prepare: true` in model-config.yaml says that it does not; `false` leaves
        every model unchanged. `dtype: bfloat16` or `float16` computes in half precision; with
        `jpeg_decoder: gpu` the GPU reads JPEGs. `acceleration: off` turns all of this off.
        """
        super().initialize(context)
        if self._fast_batches is None:
            return
        config, choice = self.model_yaml_config, acceleration.choice
        if choice(config, "jpeg_decoder", acceleration.DECODERS) == "gpu":
            self._fast_batches.decode_on_gpu(keeps_grey=self._keeps_grey)
        dtype = acceleration.DTYPES[choice(config, "dtype", acceleration.DTYPES)]
        is_built_in = type(self).__module__.startswith("ts.")
        is_wanted = config.get("prepare", is_built_in or "dtype" in config) is True
        if not is_wanted or not self.has_one_size or self._compile_options() is not None:
            return
        properties, section = context.system_properties, self.manifest["model"]

        def reload() -> Any:
            return self._load_model(properties["model_dir"], section.get("modelFile", ""))

        image = Image.new("L", (256, 256), 128)
        grey = self.image_processing(image if self._keeps_grey else image.convert("RGB"))
        example, batch_size = grey.unsqueeze(0).to(self.device), properties.get("batch_size", 1)
        self.model = (
            acceleration.prepare(self.model, reload, example, dtype, batch_size) or reload()
        )
        give_back_memory()

    # Cached properties, because some handlers call neither this class's constructor nor its
    # `initialize`, which would set attributes.
    @functools.cached_property
    def _fast_batches(self) -> acceleration.ImageBatches | None:
        """Returns what reads and lays out batches faster than the plain steps; None: nothing."""
        is_on = acceleration.is_on(config_of(self))
        return acceleration.ImageBatches(self, self._image) if is_on else None

    @functools.cached_property
    def _keeps_grey(self) -> bool:
        """Returns whether grey images stay grey for `image_processing`, as in TorchServe.

        They become RGB where grey ones would fail: in the built-in transforms, before a Normalize
        of three means, and before a model whose first convolution takes three channels.
        """
        if "image_processing" not in vars(self):
            owner = next(cls for cls in type(self).__mro__ if "image_processing" in vars(cls))
            if owner.__module__.startswith("ts."):
                return False
        model = getattr(self, "model", None)  # its constructor may not call ours
        weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
        channels = next((w.shape[1] for w in weights if w.ndim == _CONVOLUTION_DIMENSIONS), None)
        return _RGB_CHANNELS not in {channels, *_means(self.image_processing)}

    @timed
    def preprocess(self, data: Any) -> Any:
        """Returns float32 [n, 3, height, width] on the device.

        A row holds the image under `data` or `body`: bytes, text in base64, or nested lists of
        numbers that are taken as they are.

        Raises:
            PredictionException: status 400, a row without a readable image.
        """
        return self._stacked(self._images(data))

    def _images(self, data: Any) -> list[torch.Tensor]:
        values = [row.get("data") or row.get("body") for row in data]
        if self._fast_batches is not None:
            return self._fast_batches.read(values)
        return [self._image(value) for value in values]

    def _stacked(self, images: list[torch.Tensor]) -> torch.Tensor:
        if self._fast_batches is not None:
            return self._fast_batches.stacked(images)
        return torch.stack(images).to(self.device)

    def _image(self, value: Any) -> torch.Tensor:
        if isinstance(value, bytes | bytearray | str):
            short_side = short_side_after(self.image_processing)
            image = open_image(value, short_side, keep_grey=self._keeps_grey)
            return self.image_processing(image)  # type: ignore[no-any-return]
        try:
            return torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            message = "Input is not a readable image: send bytes, base64 or lists of numbers."
            raise PredictionException(message, 400) from error

    @functools.cached_property
    def ig(self) -> Any:
        return captum_attributions().IntegratedGradients(self.model)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        result = self.ig.attribute(tensor_data, target=target, n_steps=EXPLANATION_STEPS)
        return result.tolist()  # type: ignore[no-any-return]


def _means(processing: Any) -> Iterator[int]:
    """Yields the number of means of each Normalize; one mean is for any number of channels."""
    steps = getattr(processing, "transforms", None)
    if steps is None and isinstance(processing, torch.nn.Sequential):
        steps = processing
    for step in steps or ():
        yield from _means(step)
        if hasattr(step, "mean"):
            yield torch.as_tensor(step.mean).numel()
