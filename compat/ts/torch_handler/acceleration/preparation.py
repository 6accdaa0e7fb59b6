"""Makes a model ready for inference: frozen, laid out for the processor, warmed up.

A model that cannot be prepared runs unchanged, and the log says why.
"""

import contextlib
import functools
import hashlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ts.handler_utils.thread_state import with_own_state

logger = logging.getLogger(__name__)

Model = Callable[[torch.Tensor], Any]
# Measures, and returns None where that failed.
Measure = Callable[[], bool | None]
# Answers a question by what an earlier load has measured, or measures now.
Recall = Callable[[str, Measure], bool | None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# TorchScript measures for two calls of a shape, then compiles.
WARM_UP_CALLS = 3

# How often a batch is timed, whole and in parts; the first time is a warm-up.
ROUNDS = 2

# Relative to the largest answer. Folding a normalisation into the layer before it changes the last
# digits; in half precision, fused operations round once less.
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05

# How long parts may take, relative to the whole batch: on a busy machine they take less.
MOST_FOR_PARTS = 1.1

# Each thread reads all weights, which does not pay for a single row.
LEAST_ROWS = 2


class PreparedModel:
    """Runs a model in another layout and precision, with the same inputs and outputs as before."""

    def __init__(self, compute: Model, reload: Callable[[], Any]) -> None:
        self._compute = compute
        self._original = functools.cache(reload)

    def __call__(self, batch: torch.Tensor) -> Any:
        """Turns float [n, channels, height, width] into float32.

        Explanations ask for gradients, which only the original model has; the first explanation
        loads it.
        """
        if batch.requires_grad and torch.is_grad_enabled():
            return self._original()(batch)
        return self._compute(batch)


def prepare(
    model: Any,
    reload: Callable[[], Any],
    example: torch.Tensor,
    dtype: torch.dtype,
    batch_size: int,
    *,
    recall: Recall,
) -> Model | None:
    """Returns the prepared model, or None if it cannot be prepared.

    Args:
        model: the original, in evaluation mode; it is changed, so that it need not be loaded twice.
        reload: loads the model once more.
        example: an input of one row, float32 [1, channels, height, width].
        dtype: the precision to compute in. In float32 the answers stay equal within a thousandth
            of the largest; half precision is used only if the archive asks for it.
        batch_size: the largest batch.
        recall: knows what was measured at earlier loads, or `measured_now`.
    """
    started_s = time.perf_counter()
    try:
        with torch.inference_mode():
            compute = _accelerated(model, example, dtype, batch_size, recall)
            if compute is None:
                logger.warning("the prepared model answers differently; the model runs as it is")
                return None
            if example.is_cuda:
                _warm_up(compute, example, batch_size)
    except Exception:  # whatever torch raises, the archive's model still runs
        logger.warning("the model cannot be prepared and runs as it is", exc_info=True)
        return None
    seconds = time.perf_counter() - started_s
    logger.info("prepared dtype=%s batch_size=%d seconds=%.1f", dtype, batch_size, seconds)
    return PreparedModel(compute, reload)


def measured_now(_question: str, measure: Measure) -> bool | None:
    """Knows nothing from earlier loads."""
    return measure()


def _accelerated(
    model: Any, example: torch.Tensor, dtype: torch.dtype, batch_size: int, recall: Recall
) -> Model | None:
    """Returns the fastest form of the model with equal answers; None if there is none.

    In half precision the answers must equal the frozen model's.
    """
    is_exact = dtype == torch.float32
    expected = None
    if is_exact:
        # Without this, TorchScript is optimised for longer than a single call can win.
        with _all_digits(), torch.jit.optimized_execution(False):  # type: ignore[no-untyped-call]
            expected = model(example)
    model = model.to(dtype).to(memory_format=torch.channels_last)
    if isinstance(model, torch.jit.ScriptModule):
        with warnings.catch_warnings():
            # Existing archives hold TorchScript, although new models should be compiled otherwise.
            warnings.filterwarnings("ignore", r".*torch\.jit\.freeze")
            model = torch.jit.freeze(model)
    compute: Model = functools.partial(computed, model, dtype)
    if expected is None:
        expected = compute(example)
    if isinstance(model, torch.jit.ScriptModule) and example.device.type == "cpu":
        if is_exact:
            compute = _optimized(model, example, expected) or compute
        itself, *_ = model.graph.inputs()
        if not itself.uses():  # it has no state
            tolerance = TOLERANCE if is_exact else HALF_TOLERANCE
            known = functools.partial(recall, _question(model, example, dtype, batch_size))
            compute = divided(compute, example, batch_size, tolerance, known)
    with _all_digits():
        return compute if not is_exact or _are_close(compute(example), expected) else None


def _question(frozen: Any, example: torch.Tensor, dtype: torch.dtype, batch_size: int) -> str:
    """Asks whether to divide batches, with all that this depends on but archive and processor.

    Another way to divide them needs another first word.
    """
    # A handler may have loaded another model than its archive's.
    graph = hashlib.sha256(str(frozen.graph).encode()).hexdigest()
    return (
        f"divide batch_size={batch_size} row={tuple(example.shape[1:])} dtype={dtype}"
        f" threads={torch.get_num_threads()} torch={torch.__version__}"
        f" instructions={torch.backends.cpu.get_cpu_capability()} graph={graph}"
    )


def _warm_up(compute: Model, example: torch.Tensor, batch_size: int) -> None:
    """Runs batches of many sizes, because the first call of a kernel loads it.

    Needed on a GPU only: on a processor the first call takes no longer than later ones. The sizes
    are powers of two, as cuDNN picks its kernel by the size. The full batch comes first, as
    TorchScript compiles a version for each of the first sizes, then one for all other sizes.
    """
    powers = (2**power for power in range(batch_size.bit_length()))
    for rows in dict.fromkeys([batch_size, 1, *powers]):
        batch = example.expand(rows, *example.shape[1:])
        for _ in range(WARM_UP_CALLS):
            compute(batch)


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


def _optimized(frozen: Any, example: torch.Tensor, expected: Any) -> Model | None:
    """Returns frozen TorchScript optimized for oneDNN; None if that fails or changes answers."""
    try:
        model = torch.jit.optimize_for_inference(frozen)
        compute: Model = functools.partial(computed, model, torch.float32)
        is_close = _are_close(compute(example), expected)
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("the model cannot be optimized for this processor", exc_info=True)
        return None
    if not is_close:
        logger.warning("optimized, the model answers differently; it runs without")
        return None
    return compute


def computed(model: Model, dtype: torch.dtype, batch: torch.Tensor) -> Any:
    """Converts the batch to the model's precision and layout; returns its answer in float32."""
    return _as_float32(model(batch.to(dtype, memory_format=torch.channels_last)))


def divided(
    model: Model,
    example: torch.Tensor,
    batch_size: int,
    tolerance: float,
    recall: Callable[[Measure], bool | None],
) -> Model:
    """Returns the model in a form that runs parts of a batch in parallel.

    Returns it unchanged if parallel parts are slower, or if a row's answer depends on other rows.

    Args:
        model: without state.
        example: an input of one row.
        batch_size: the largest batch.
        tolerance: how far answers may differ, relative to the largest.
        recall: tells whether to divide, as an earlier load has measured; else measures.
    """
    parallel = DataParallel(model, torch.get_num_threads())
    if parallel.part_count(batch_size) == 1:
        return model
    factors = torch.linspace(0.5, 1.5, batch_size).reshape(-1, *[1] * (example.ndim - 1))
    measure = functools.partial(_are_parts_better, model, parallel, example * factors, tolerance)
    return parallel if recall(measure) else model


def _are_parts_better(
    model: Model, parallel: Model, batch: torch.Tensor, tolerance: float
) -> bool | None:
    """Times the batch whole and in parts, and compares the answers; None if a call fails."""
    logger.info("timing %d batches of %d, whole and in parts", 2 * ROUNDS, len(batch))
    whole_s, parts_s = [], []
    try:
        for _ in range(ROUNDS):
            started_s = time.perf_counter()
            expected = model(batch)
            whole_s.append(time.perf_counter() - started_s)
            answer = parallel(batch)
            parts_s.append(time.perf_counter() - started_s - whole_s[-1])
        is_close = _are_close(answer, expected, tolerance)
    except Exception:  # whatever torch raises, the model runs without
        logger.warning("batches cannot be divided", exc_info=True)
        return None
    logger.info("timed whole_s=%.2f in_parts_s=%.2f", min(whole_s), min(parts_s))
    if not is_close:
        logger.warning("rows depend on their neighbours; batches are not divided")
    return is_close and min(parts_s) <= MOST_FOR_PARTS * min(whole_s)


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


class DataParallel:
    """Computes a batch with several threads, each of which takes rows of its own.

    Threads that share a convolution wait for each other after it, and a network has some hundred:
    when another process takes a core for a moment, all threads wait. Threads with rows of their own
    wait once per batch.

    Source: OpenVINO's documentation on throughput streams, as an idea.

    Args:
        model: takes float [n, …]; gives a tensor whose first dimension is n, or a mapping of such
            tensors. It has no state, and no row depends on its neighbours.
        threads: the number of threads that all parts share.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self._model = model
        self._threads = threads
        # It starts threads when they are needed.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows")

    def part_count(self, rows: int) -> int:
        return max(1, min(self._threads, rows // LEAST_ROWS))

    def __call__(self, batch: torch.Tensor) -> Any:
        """Returns the model's answer; without gradients, where there is more than one part."""
        count = self.part_count(len(batch))
        if count == 1:
            return self._model(batch)
        with torch.inference_mode():
            run = with_own_state(self._model, self._threads // count)
        return _joined([*self._pool.map(run, batch.tensor_split(count))])


def _joined(answers: list[Any]) -> Any:
    first = answers[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(answers)
    if isinstance(first, Mapping):
        return {name: _joined([answer[name] for answer in answers]) for name in first}
    raise TypeError(f"An answer of {type(first).__name__} has no rows.")
