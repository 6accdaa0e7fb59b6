"""What the image handlers share: rows of bytes become one batch of pixels."""

import functools
import io
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from PIL import Image

from ts.handler_utils.timer import timed
from ts.torch_handler import acceleration
from ts.torch_handler.acceleration.gpu_jpegs import JpegDecoder, on_tensors, read_decoder
from ts.torch_handler.acceleration.grey_images import keeps_grey
from ts.torch_handler.acceleration.pixel_steps import PixelSteps, divide_steps
from ts.torch_handler.acceleration.precision import read_dtype
from ts.torch_handler.acceleration.preparation import prepare
from ts.torch_handler.acceleration.resizing import short_side_after
from ts.torch_handler.attribution import captum_attributions
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.images import open_image
from ts.torch_handler.weights import give_back_memory
from ts.utils.util import PredictionException

logger = logging.getLogger(__name__)

EXPLANATION_STEPS = 15
FEWEST_DECODERS, MOST_DECODERS = 4, 16


class VisionHandler(BaseHandler):
    """A subclass sets `image_processing`: PIL image → float32 [3, height, width]."""

    image_processing: ClassVar[Any] = None

    # Whether all images become tensors of one size, so that the model can be prepared for it.
    has_one_size: ClassVar[bool] = False

    # Nothing is set in a constructor: handlers exist that do not call it.
    _gpu_jpegs: JpegDecoder | None = None
    _is_accelerated = True

    @functools.cached_property
    def _decoders(self) -> ThreadPoolExecutor:
        # Reading a JPEG takes some 8 ms and lets other threads run.
        return ThreadPoolExecutor(decoder_count(), thread_name_prefix="decode")

    def initialize(self, context: Any) -> None:
        """Loads the model onto its device and prepares it where that is known to be safe.

        By default only for the built-in handlers as they are: one of your own may look into the
        model. `prepare: true` in model-config.yaml says that it does not; `false` leaves every
        model as it came. `dtype: bfloat16` or `float16` computes in half precision; with
        `jpeg_decoder: gpu` the GPU reads JPEGs. `acceleration: off` turns all of that off.
        """
        super().initialize(context)
        config = self.model_yaml_config
        self._is_accelerated = acceleration.is_on(config)
        if not self._is_accelerated:
            return
        if read_decoder(config.get("jpeg_decoder", "cpu")) == "gpu":
            self._gpu_jpegs = self._jpeg_decoder()
        is_built_in = type(self).__module__.startswith("ts.")
        if config.get("prepare", is_built_in or "dtype" in config) is True:
            self._prepare_model(context)

    def _jpeg_decoder(self) -> JpegDecoder | None:
        """A decoder that has decoded one image; None where there can be none, and the log says so.

        The first image takes long: nvJPEG is loaded for it.
        """
        steps = self._steps
        # The GPU makes RGB of grey.
        processing = (
            None
            if self._keeps_grey
            else on_tensors(steps.before if steps else self.image_processing)
        )
        if self.device.type != "cuda" or processing is None:
            why = "there is none" if processing else "image_processing may want Pillow's images"
            logger.warning("images are not decoded by the GPU: %s", why)
            return None
        decoder = JpegDecoder(processing, self.device)
        try:
            decoder.decode_all([_grey_jpeg()])
        except Exception as error:  # no nvJPEG, or whatever a step raises
            logger.warning("images are not decoded by the GPU: %r", error)
            return None
        return decoder

    def _prepare_model(self, context: Any) -> None:
        dtype = read_dtype(self.model_yaml_config.get("dtype", "float32"))
        if not self.has_one_size or self._compile_options() is not None:
            return
        properties, section = context.system_properties, self.manifest["model"]

        def reload() -> Any:
            return self._load_model(properties["model_dir"], section.get("modelFile", ""))

        image = Image.new("L", (256, 256), 128)
        grey = self.image_processing(image if self._keeps_grey else image.convert("RGB"))
        example = grey.unsqueeze(0).to(self.device)
        prepared = prepare(self.model, reload, example, dtype, properties.get("batch_size", 1))
        self.model = prepared or self.model
        give_back_memory()

    @timed
    def preprocess(self, data: Any) -> Any:
        """float32 [n, 3, height, width] on the device.

        A row holds the image under `data` or `body`: bytes, text in base64, or nested lists of
        numbers that are taken as they are.

        Raises:
            PredictionException: status 400, a row without a readable image.
        """
        return self._stacked(self._images(data))

    @property
    def _is_on_gpu(self) -> bool:
        # A handler may have set its device as text, or none.
        return self.device is not None and torch.device(self.device).type == "cuda"

    @property
    def _steps(self) -> PixelSteps | None:
        """Returns what a GPU does to all images at once, if there is one and such steps.

        Asked for anew each time: a handler may set `image_processing` whenever it likes. On a
        processor each image is one thread's work.
        """
        if not self._is_on_gpu or not self._is_accelerated:
            return None
        return divide_steps(self.image_processing)

    def _stacked(self, images: list[torch.Tensor]) -> torch.Tensor:
        if len({image.dtype for image in images}) > 1:  # lists of numbers among them
            return torch.stack(self._finished(images))
        batch = self._on_device(images)
        steps = self._steps if batch.dtype == torch.uint8 else None
        return steps.together(batch) if steps else batch  # type: ignore[no-any-return]

    def _finished(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns each image on the device, after its last step."""
        steps, found = self._steps, [image.to(self.device) for image in images]
        if steps is None:
            return found
        return [steps.together(one) if one.dtype == torch.uint8 else one for one in found]

    def _on_device(self, images: list[torch.Tensor]) -> torch.Tensor:
        if not self._is_on_gpu or not self._is_accelerated:
            return torch.stack(images).to(self.device)
        if any(image.is_cuda for image in images):
            return torch.stack([image.to(self.device) for image in images])
        # From memory that stays where it is the GPU copies by itself. torch keeps such memory, and
        # hands it out again when the copy is done.
        shape = (len(images), *images[0].shape)
        pinned = torch.empty(shape, dtype=images[0].dtype, pin_memory=True)
        return torch.stack(images, out=pinned).to(self.device, non_blocking=True)

    def _images(self, data: Any) -> list[torch.Tensor]:
        values = [row.get("data") or row.get("body") for row in data]
        if self._gpu_jpegs is None:
            return self._decoded(values)
        images = self._gpu_jpegs.decode(values)
        left = [value for value, image in zip(values, images, strict=True) if image is None]
        others = iter(self._decoded(left))
        return [next(others) if image is None else image for image in images]

    def _decoded(self, values: list[Any]) -> list[torch.Tensor]:
        if len(values) == 1 or not self._is_accelerated:
            return [self._image(value) for value in values]
        return list(self._decoders.map(self._image_alone, values))

    def _image_alone(self, value: Any) -> torch.Tensor:
        # On one core, as its neighbours have theirs: otherwise each of these threads would have a
        # team of its own for the arithmetic behind the decoding. (Of this thread, and of those to
        # come that say nothing else.)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        return self._image(value)

    @functools.cached_property
    def _keeps_grey(self) -> bool:
        return keeps_grey(self)

    def _image(self, value: Any) -> torch.Tensor:
        if isinstance(value, bytes | bytearray | str):
            short_side = short_side_after(self.image_processing)
            image = open_image(value, short_side, keep_grey=self._keeps_grey)
            steps = self._steps
            processing = steps.each if steps else self.image_processing
            return processing(image)  # type: ignore[no-any-return]
        try:
            return torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            message = "Input is not a readable image: send bytes, base64 or lists of numbers."
            raise PredictionException(message, 400) from error

    @functools.cached_property
    def ig(self) -> Any:
        """Captum's integrated gradients of the model.

        Raises:
            PredictionException: status 501, the package captum is not installed.
        """
        return captum_attributions().IntegratedGradients(self.model)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Integrated gradients of the pixels for one class.

        Raises:
            PredictionException: status 501, the package captum is not installed.
        """
        result = self.ig.attribute(tensor_data, target=target, n_steps=EXPLANATION_STEPS)
        return result.tolist()  # type: ignore[no-any-return]


def decoder_count() -> int:
    """Returns how many threads read images.

    A worker's share of the cores, which may feed a whole GPU.

    Or a few more, as workers seldom read at the same moment, and none of these threads spins.
    """
    fewest = min(FEWEST_DECODERS, os.cpu_count() or 1)
    return min(MOST_DECODERS, max(fewest, torch.get_num_threads()))


def _grey_jpeg() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (256, 256), (128, 128, 128)).save(content, "JPEG")
    return content.getvalue()
