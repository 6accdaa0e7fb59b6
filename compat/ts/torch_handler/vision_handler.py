"""Turns rows of bytes into one batch of pixels: the base of the image handlers."""

import functools
from typing import Any, ClassVar

import torch
from PIL import Image

from ts.handler_utils.timer import timed
from ts.handler_utils.utils import config_of
from ts.torch_handler import acceleration
from ts.torch_handler.acceleration.image_batches import DECODERS, ImageBatches
from ts.torch_handler.acceleration.preparation import DTYPES, measured_now, prepare
from ts.torch_handler.base_handler import BaseHandler, captum_attributions
from ts.torch_handler.image_steps import keeps_grey, short_side_after
from ts.torch_handler.images import open_image
from ts.torch_handler.weights import give_back_memory
from ts.utils.util import PredictionException

EXPLANATION_STEPS = 15


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
        config = self.model_yaml_config
        if acceleration.choice(config, "jpeg_decoder", DECODERS) == "gpu":
            self._fast_batches.decode_on_gpu(keeps_grey=self._keeps_grey)
        dtype = DTYPES[acceleration.choice(config, "dtype", DTYPES)]
        is_built_in = type(self).__module__.startswith("ts.")
        is_wanted = config.get("prepare", is_built_in or "dtype" in config) is True
        if is_wanted and self.has_one_size and self._compile_options() is None:
            self._prepare_model(context, dtype)

    # Cached properties, because some handlers call neither this class's constructor nor its
    # `initialize`, which would set attributes.
    @functools.cached_property
    def _fast_batches(self) -> ImageBatches | None:
        """Returns what reads and lays out batches faster than the plain steps; None: nothing."""
        return ImageBatches(self, self._image) if acceleration.is_on(config_of(self)) else None

    @functools.cached_property
    def _keeps_grey(self) -> bool:
        return keeps_grey(self)

    def _prepare_model(self, context: Any, dtype: torch.dtype) -> None:
        properties, section = context.system_properties, self.manifest["model"]

        def reload() -> Any:
            return self._load_model(properties["model_dir"], section.get("modelFile", ""))

        image = Image.new("L", (256, 256), 128)
        grey = self.image_processing(image if self._keeps_grey else image.convert("RGB"))
        example = grey.unsqueeze(0).to(self.device)
        batch_size = properties.get("batch_size", 1)
        recall = getattr(context, "recall", None) or measured_now
        prepared = prepare(self.model, reload, example, dtype, batch_size, recall=recall)
        self.model = prepared or reload()
        give_back_memory()

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
        """Returns integrated gradients of the pixels for one class."""
        result = self.ig.attribute(tensor_data, target=target, n_steps=EXPLANATION_STEPS)
        return result.tolist()  # type: ignore[no-any-return]
