"""Makes a model ready for inference: frozen, laid out for the processor, warmed up.

A model that resists runs as it is, and the log says why.
"""

import contextlib
import functools
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ts.torch_handler.acceleration.data_parallel import DataParallel, Model, calls_of, part_count
from ts.torch_handler.acceleration.fused_convolutions import can_fuse, fuse_convolutions
from ts.torch_handler.acceleration.precision import times_of_float32

logger = logging.getLogger(__name__)

# TorchScript measures for two calls of a shape, then compiles.
WARM_UP_CALLS = 3

# Folding a normalisation into the layer before it moves the last digits.
TOLERANCE = 1e-3
# For half precision: where operations are fused, results are rounded once less.
HALF_TOLERANCE = 0.05

# Times of the whole batch. Parts that take as long on a quiet machine take less on a busy one.
MOST_FOR_PARTS = 1.1

# Times of float32; less may be noise.
MOST_FOR_HALF = 1.1


class PreparedModel:
    """A model in another layout and precision that takes and gives what it did before."""

    def __init__(self, compute: Model, reload: Callable[[], Any]) -> None:
        self._compute = compute
        self._as_it_came = functools.cache(reload)

    def __call__(self, batch: torch.Tensor) -> Any:
        """Turns float [n, channels, height, width] into float32.

        Explanations ask for gradients, which only the model as it came has; the first explanation
        loads that model.
        """
        if batch.requires_grad and torch.is_grad_enabled():
            return self._as_it_came()(batch)
        return self._compute(batch)


def prepare(
    model: Model,
    reload: Callable[[], Any],
    example: torch.Tensor,
    dtype: torch.dtype,
    batch_size: int,
) -> Model | None:
    """Returns the model made ready, or None where it resists.

    Args:
        model: the model as it came.
        reload: loads the model once more, in evaluation mode; this copy is changed.
        example: an input of one row, float32 [1, channels, height, width].
        dtype: the precision to compute in. In float32 the answers stay equal within a thousandth
            of the largest; half precision is the archive's own wish.
        batch_size: the largest batch; this size and a single row are warmed up, and on a GPU some
            sizes between.
    """
    started_s = time.perf_counter()
    try:
        with torch.inference_mode():
            frozen = _frozen(reload(), dtype)
            laid_out = example.to(dtype, memory_format=torch.channels_last)
            fused = _fused(frozen, laid_out, batch_size)
            compute: Model = functools.partial(computed, fused, dtype)
            if fused is not frozen:
                compute = divided(compute, example, batch_size, _tolerance(dtype))
            prepared = PreparedModel(compute, reload)
            with _all_digits():
                expected, answer = model(example), prepared(example)
            if dtype == torch.float32 and not _are_close(answer, expected):
                logger.warning("the prepared model answers differently; the model runs as it is")
                return None
            if dtype != torch.float32 and example.device.type == "cpu":
                _warn_if_slower(dtype)
            for rows in warm_up_sizes(batch_size, example.device):
                batch = example.expand(rows, *example.shape[1:])
                for _ in range(WARM_UP_CALLS):
                    prepared(batch)
    except Exception:  # whatever torch raises, the archive's model still runs
        logger.warning("the model cannot be prepared and runs as it is", exc_info=True)
        return None
    seconds = time.perf_counter() - started_s
    logger.info("prepared dtype=%s batch_size=%d seconds=%.1f", dtype, batch_size, seconds)
    return prepared


def _warn_if_slower(dtype: torch.dtype) -> None:
    times = times_of_float32(dtype)
    if times > MOST_FOR_HALF:
        logger.warning(
            "this processor takes %.1f times as long in %s as in float32; without `dtype` in"
            " model-config.yaml the model is probably faster here",
            times,
            str(dtype).removeprefix("torch."),
        )


def warm_up_sizes(batch_size: int, device: torch.device) -> list[int]:
    """Returns the sizes of the batches that warm a model up.

    On a GPU also each power of two: cuDNN picks another kernel for another size, and the first call
    of a kernel loads it. The full batch comes first: TorchScript compiles the first sizes for
    themselves, later sizes for any.
    """
    sizes = [batch_size, 1]
    if device.type == "cuda":
        sizes += [2**power for power in range(1, batch_size.bit_length())]
    return list(dict.fromkeys(sizes))


@contextlib.contextmanager
def _all_digits() -> Iterator[None]:
    """Makes convolutions and products on a GPU as exact as float32.

    TF32's own error would hide what folding has changed.
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


def _frozen(model: Any, dtype: torch.dtype) -> Any:
    model = model.to(dtype).to(memory_format=torch.channels_last)
    if isinstance(model, torch.jit.ScriptModule):
        with warnings.catch_warnings():
            # Existing archives hold TorchScript, although new models should be compiled otherwise.
            warnings.filterwarnings("ignore", r".*torch\.jit\.freeze")
            model = torch.jit.freeze(model)
    return model


def _fused(model: Any, example: torch.Tensor, batch_size: int) -> Any:
    """Returns the frozen model with fused convolutions; as it is where it has none, or resists.

    Model and `example`, an input of one row, have the same precision and layout.
    """
    is_script = isinstance(model, torch.jit.ScriptModule)
    if not is_script or not can_fuse(example.device, example.dtype):
        return model
    try:
        fused = fuse_convolutions(model, example, calls_of(batch_size, torch.get_num_threads()))
        if fused is None:
            return model
        answer, expected = _as_float32(fused(example)), _as_float32(model(example))
        is_close = _are_close(answer, expected, _tolerance(example.dtype))
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("convolutions cannot be fused", exc_info=True)
        return model
    if not is_close:
        logger.warning("with fused convolutions the model answers differently; it runs without")
        return model
    return fused


def computed(model: Model, dtype: torch.dtype, batch: torch.Tensor) -> Any:
    """Converts the batch to the model's precision and layout; returns its answer in float32."""
    return _as_float32(model(batch.to(dtype, memory_format=torch.channels_last)))


def divided(model: Model, example: torch.Tensor, batch_size: int, tolerance: float) -> Model:
    """Returns the model so that parts of a batch run in parallel, and warms up the largest batch.

    Returns it as it is where parallel parts are slower, or where a row's answer depends on the rows
    beside it.

    Args:
        model: without state.
        example: an input of one row.
        batch_size: the largest batch.
        tolerance: how far answers may differ, relative to the largest.
    """
    threads = torch.get_num_threads()
    if part_count(batch_size, threads) == 1:
        return model
    parallel = DataParallel(model, threads)
    factors = torch.linspace(0.5, 1.5, batch_size).reshape(-1, *[1] * (example.ndim - 1))
    batch = example * factors
    whole_s, parts_s = [], []
    try:
        for _ in range(WARM_UP_CALLS):
            started_s = time.perf_counter()
            expected = model(batch)
            whole_s.append(time.perf_counter() - started_s)
            answer = parallel(batch)
            parts_s.append(time.perf_counter() - started_s - whole_s[-1])
        is_close = _are_close(answer, expected, tolerance)
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("batches cannot be divided", exc_info=True)
        return model
    if not is_close:
        logger.warning("rows depend on their neighbours; batches are not divided")
        return model
    return parallel if min(parts_s) <= MOST_FOR_PARTS * min(whole_s) else model


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE


def _as_float32(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.is_floating_point() else output
    if isinstance(output, Mapping):
        return {name: _as_float32(value) for name, value in output.items()}
    if isinstance(output, list | tuple):
        return type(output)(_as_float32(value) for value in output)
    return output


def _are_close(answer: Any, expected: Any, tolerance: float = TOLERANCE) -> bool:
    if isinstance(expected, Mapping):
        return all(_are_close(answer[name], value, tolerance) for name, value in expected.items())
    largest = float(expected.abs().max())
    return bool(torch.allclose(answer, expected.float(), rtol=0.0, atol=tolerance * largest))
