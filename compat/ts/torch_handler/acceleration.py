"""Makes the built-in image handlers faster at equal answers; one switch turns all of it off.

What each part wins: docs/adr/0018-acceleration.md.
"""

import contextlib
import functools
import io
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from ts.handler_utils.utils import with_own_state
from ts.torch_handler.images import is_plain_jpeg, short_side_after

logger = logging.getLogger(__name__)

DECODERS = ("cpu", "gpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FEWEST_THREADS, MOST_THREADS = 4, 16

# Relative to the largest answer. Folding a normalisation into the layer before it changes the last
# digits; in half precision, fused operations round once less.
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05

# Of a batch, for each thread, which reads all weights.
LEAST_ROWS = 4

# TorchScript measures for two calls of a shape, then compiles.
WARM_UP_CALLS = 3


def is_on(config: Mapping[str, Any]) -> bool:
    """Returns whether neither model-config.yaml nor the server's setting says `off`."""
    # YAML reads a plain `off` as false.
    is_off = config.get("acceleration") in (False, "off")
    return not is_off and os.environ.get("FERRY_ACCELERATION") != "off"


def choice(config: Mapping[str, Any], key: str, names: Iterable[str]) -> str:
    """Returns model-config.yaml's name under `key`; by default, the first of `names`."""
    known = list(names)
    name = config.get(key, known[0])
    if name not in known:
        raise ValueError(f"{key} in model-config.yaml must be one of {', '.join(known)}.")
    return str(name)


# --- models


class PreparedModel:
    """Runs a model in another layout and precision, with the same inputs and outputs as before.

    Large batches are divided where `is_divided`: each thread computes rows of its own. Threads that
    share a convolution wait for each other after it, and a network has some hundred: when another
    process takes a core for a moment, all threads wait. Rows of their own wait once per batch.

    Source: OpenVINO's documentation on throughput streams, as an idea.
    """

    def __init__(self, model: Any, dtype: torch.dtype, reload: Callable[[], Any]) -> None:
        self.is_divided = False
        self._model = model
        self._dtype = dtype
        self._original = functools.cache(reload)
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="rows")

    def __call__(self, batch: torch.Tensor) -> Any:
        """Turns float [n, channels, height, width] into float32.

        Explanations ask for gradients, which only the original model has; the first explanation
        loads it.
        """
        if batch.requires_grad and torch.is_grad_enabled():
            return self._original()(batch)
        parts = self.parts(len(batch)) if self.is_divided else 1
        if parts <= 1:
            return self._compute(batch)
        with torch.inference_mode():
            compute = with_own_state(self._compute, self._threads // parts)
        return _joined([*self._pool.map(compute, batch.tensor_split(parts))])

    def parts(self, rows: int) -> int:
        return min(self._threads, rows // LEAST_ROWS)

    def _compute(self, batch: torch.Tensor) -> Any:
        return _as_float32(self._model(batch.to(self._dtype, memory_format=torch.channels_last)))


def prepare(
    model: Any,
    reload: Callable[[], Any],
    example: torch.Tensor,
    dtype: torch.dtype,
    batch_size: int,
) -> PreparedModel | None:
    """Returns the model frozen, laid out for the processor and warmed up; None if that fails.

    Args:
        model: the original, in evaluation mode; it is changed, so that it need not be loaded twice.
        reload: loads the model once more.
        example: an input of one row, float32 [1, channels, height, width].
        dtype: the precision to compute in. In float32 the answers stay equal within TOLERANCE; half
            precision is used only if the archive asks for it.
        batch_size: the largest batch.
    """
    started_s, is_on_cpu = time.perf_counter(), example.device.type == "cpu"
    is_exact = dtype == torch.float32
    try:
        with torch.inference_mode():
            with _all_digits():
                # Without this, TorchScript is optimised for longer than a single call can win.
                with torch.jit.optimized_execution(False):  # type: ignore[no-untyped-call]
                    expected = model(example) if is_exact else None
                model = _laid_out(model, dtype)
                prepared, optimized = PreparedModel(model, dtype, reload), None
                is_script = isinstance(model, torch.jit.ScriptModule)
                if is_script and is_on_cpu and is_exact:
                    optimized = _optimized(model, reload, example, expected)
                answer = None if optimized else prepared(example)
            if is_exact and not optimized and not _are_close(answer, expected, TOLERANCE):
                logger.warning("the prepared model answers differently; the model runs as it is")
                return None
            prepared = optimized or prepared
            if example.is_cuda:
                _warm_up(prepared, example, batch_size)
            if is_script and is_on_cpu and prepared.parts(batch_size) > 1:
                itself, *_ = model.graph.inputs()
                tolerance = TOLERANCE if is_exact else HALF_TOLERANCE
                has_state = bool(itself.uses())
                if not has_state and _are_rows_alone(prepared, example, tolerance):
                    prepared.is_divided = True
    except Exception:  # whatever torch raises, the archive's model still runs
        logger.warning("the model cannot be prepared and runs as it is", exc_info=True)
        return None
    seconds = time.perf_counter() - started_s
    logger.info("prepared dtype=%s batch_size=%d seconds=%.1f", dtype, batch_size, seconds)
    return prepared


@contextlib.contextmanager
def _all_digits() -> Iterator[None]:
    """Makes convolutions and products on a GPU as exact as float32.

    TF32's own error would hide the effect of folding.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    # Torch refuses to read `allow_tf32` once a handler has used the newer name.
    name, exact = "fp32_precision", "ieee"
    if not hasattr(matmul, name):  # before torch 2.9
        name, exact = "allow_tf32", False
    before = cudnn.allow_tf32, getattr(matmul, name)
    cudnn.allow_tf32 = False
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        cudnn.allow_tf32 = before[0]
        setattr(matmul, name, before[1])


def _laid_out(model: Any, dtype: torch.dtype) -> Any:
    model = model.to(dtype).to(memory_format=torch.channels_last)
    if isinstance(model, torch.jit.ScriptModule):
        with warnings.catch_warnings():
            # Existing archives hold TorchScript, although new models should be compiled otherwise.
            warnings.filterwarnings("ignore", r".*torch\.jit\.")
            model = torch.jit.freeze(model)
    return model


def _optimized(
    frozen: Any, reload: Callable[[], Any], example: torch.Tensor, expected: Any
) -> PreparedModel | None:
    """Returns frozen TorchScript optimized for oneDNN; None if that fails or changes answers."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*torch\.jit\.")
            model = torch.jit.optimize_for_inference(frozen)
        prepared = PreparedModel(model, torch.float32, reload)
        is_close = _are_close(prepared(example), expected, TOLERANCE)
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("the model cannot be optimized for this processor", exc_info=True)
        return None
    if not is_close:
        logger.warning("optimized, the model answers differently; it runs without")
    return prepared if is_close else None


def _are_rows_alone(prepared: PreparedModel, example: torch.Tensor, tolerance: float) -> bool:
    """Returns whether a batch is answered in parts as it is whole.

    A small one: each load of a worker waits for it.
    """
    factors = torch.linspace(0.5, 1.5, LEAST_ROWS).reshape(-1, *[1] * (example.ndim - 1))
    batch = example * factors
    try:
        answer = _joined([prepared(part) for part in batch.tensor_split(2)])
        is_close = _are_close(answer, prepared(batch), tolerance)
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("batches cannot be divided", exc_info=True)
        return False
    if not is_close:
        logger.warning("rows depend on their neighbours; batches are not divided")
    return is_close


def _warm_up(prepared: PreparedModel, example: torch.Tensor, batch_size: int) -> None:
    """Runs batches of many sizes, because the first call of a kernel on a GPU loads it.

    The sizes are powers of two, as cuDNN picks its kernel by the size. The full batch comes first,
    as TorchScript compiles a version for each of the first sizes, then one for all other sizes.
    """
    powers = (2**power for power in range(batch_size.bit_length()))
    for rows in dict.fromkeys([batch_size, 1, *powers]):
        batch = example.expand(rows, *example.shape[1:])
        for _ in range(WARM_UP_CALLS):
            prepared(batch)


def _as_float32(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.is_floating_point() else output
    if isinstance(output, Mapping):
        return {name: _as_float32(value) for name, value in output.items()}
    if isinstance(output, list | tuple):
        return type(output)(_as_float32(value) for value in output)
    return output


def _joined(answers: Sequence[Any]) -> Any:
    first = answers[0]
    if isinstance(first, Mapping):
        return {name: _joined([answer[name] for answer in answers]) for name in first}
    if not isinstance(first, torch.Tensor):
        raise TypeError(f"An answer of {type(first).__name__} has no rows.")
    return torch.cat([*answers])


def _are_close(answer: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, Mapping):
        return all(_are_close(answer[name], value, tolerance) for name, value in expected.items())
    largest = float(expected.abs().max())
    return bool(torch.allclose(answer, expected.float(), rtol=0.0, atol=tolerance * largest))


# --- images


class ImageBatches:
    """Reads and stacks the images of a `VisionHandler`, by several threads or by the GPU.

    Args:
        handler: its `device` and `image_processing` are read for each batch, because a handler may
            set them at any time.
        read: returns the tensor of one value.
    """

    def __init__(self, handler: Any, read: Callable[[Any], torch.Tensor]) -> None:
        self._handler = handler
        self._read = read
        self.gpu_jpegs: JpegDecoder | None = None

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # Reading a JPEG takes some 8 ms and lets other threads run.
        return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")

    @property
    def _is_on_gpu(self) -> bool:
        # A handler may have set its device as text, or none.
        device = self._handler.device
        return device is not None and torch.device(device).type == "cuda"

    def read(self, values: list[Any]) -> list[torch.Tensor]:
        images = self.gpu_jpegs.decode(values) if self.gpu_jpegs else [None] * len(values)
        left = [value for value, image in zip(values, images, strict=True) if image is None]
        if len(left) == 1:
            others = iter([self._read(left[0])])
        else:
            # One core each: otherwise each of these threads would start threads of its own for the
            # arithmetic after the decoding.
            others = iter(list(self._threads.map(with_own_state(self._read, cores=1), left)))
        return [next(others) if image is None else image for image in images]

    def stacked(self, images: list[torch.Tensor]) -> torch.Tensor:
        device = self._handler.device
        if not self._is_on_gpu or any(image.is_cuda for image in images):
            return torch.stack([image.to(device) for image in images])
        # From pinned memory the GPU copies without waiting; torch reuses it after the copy.
        shape = (len(images), *images[0].shape)
        pinned = torch.empty(shape, dtype=images[0].dtype, pin_memory=True)
        return torch.stack(images, out=pinned).to(device, non_blocking=True)

    def decode_on_gpu(self, *, keeps_grey: bool) -> None:
        """Lets the GPU decode JPEGs from now on, if it can; the log says why it cannot.

        The first image takes long: nvJPEG is loaded for it.
        """
        # The GPU makes RGB of grey.
        processing = None if keeps_grey else on_tensors(self._handler.image_processing)
        if not self._is_on_gpu or processing is None:
            why = "image_processing may want Pillow's images"
            why = why if self._is_on_gpu else "there is none"
            logger.warning("images are not decoded by the GPU: %s", why)
            return
        decoder = JpegDecoder(processing, torch.device(self._handler.device))
        Image.new("RGB", (256, 256), (128, 128, 128)).save(grey := io.BytesIO(), "JPEG")
        if decoder.decode([grey.getvalue()])[0] is not None:
            self.gpu_jpegs = decoder


def thread_count() -> int:
    """Returns how many threads read images: a worker's share of the cores, which may feed a GPU.

    At least FEWEST_THREADS, as workers seldom read at the same moment.
    """
    fewest = min(FEWEST_THREADS, os.cpu_count() or 1)
    return min(MOST_THREADS, max(fewest, torch.get_num_threads()))


def on_tensors(processing: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns the same steps for uint8 [3, height, width]; None if one needs a Pillow image."""
    if not isinstance(processing, transforms.Compose):
        return None
    in_place_of = {transforms.ToTensor: transforms.ConvertImageDtype(torch.float32)}
    steps = [in_place_of.get(type(step), step) for step in processing.transforms]
    # torchvision's own steps are modules and take both; other functions may want Pillow's methods.
    takes_tensors = all(isinstance(step, torch.nn.Module) for step in steps)
    return transforms.Compose(steps) if takes_tensors else None


class JpegDecoder:
    """Turns images as they were sent into [3, height, width] on the device, by `processing`.

    It uses torchvision's binding of nvJPEG, whose pixels differ a little from Pillow's.
    """

    def __init__(
        self, processing: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> None:
        self._processing = processing
        self._device = device

    def decode(self, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        """Returns one image per value; None leaves a value to Pillow.

        The GPU gets complete JPEGs in grey or RGB within the limit of pixels, Pillow the rest. When
        the GPU refuses an image, Pillow gets the whole batch, as the GPU does not say which it was.
        """
        short_side = short_side_after(self._processing)
        are_plain = [is_plain_jpeg(value, short_side) for value in values]
        # A bytearray, because torch warns of memory that it may not write to.
        encoded = [
            torch.frombuffer(bytearray(value), dtype=torch.uint8)
            for value, is_plain in zip(values, are_plain, strict=True)
            if is_plain
        ]
        try:
            decoded = self._decoded(encoded) if encoded else []
            images = iter([self._processing(image) for image in decoded])
        except Exception as error:  # no nvJPEG, a broken image, or whatever a step raises
            logger.warning("images=%d are not decoded by the GPU: %s", len(encoded), error)
            return [None] * len(values)
        return [next(images) if is_plain else None for is_plain in are_plain]

    def _decoded(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._device.type == "cuda":
            # torchvision decodes on streams of its own, which do not wait until work of this stream
            # has read the memory that they are given.
            torch.cuda.current_stream(self._device).synchronize()
        with warnings.catch_warnings():
            # Deprecated since torchvision 0.29, in favour of a package of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            return decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)  # type: ignore[no-any-return]
