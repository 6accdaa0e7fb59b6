"""Computes a batch with several threads at once, each of which takes rows of its own.

Threads that share one convolution wait for each other behind it, and a network has some hundred
convolutions: when another process takes a core for a moment, all threads wait. Threads with rows of
their own meet once per batch.

Source: OpenVINO's documentation on throughput streams, as an idea.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ts.handler_utils.thread_state import with_own_state
from ts.torch_handler.acceleration.fused_convolutions import Call

Model = Callable[[torch.Tensor], Any]

# Each thread reads all weights, which a single row is not worth.
LEAST_ROWS = 2


def part_count(rows: int, threads: int) -> int:
    """Returns into how many parts a batch of this many rows is divided."""
    return max(1, min(threads, rows // LEAST_ROWS))


def calls_of(batch_size: int, threads: int) -> list[Call]:
    """Returns how a model is called for batches of up to `batch_size` rows, divided and whole."""
    calls = {Call(rows, threads) for rows in range(1, batch_size + 1)}
    for rows in range(1, batch_size + 1):
        count = part_count(rows, threads)
        calls |= {Call(rows // count, threads // count), Call(-(-rows // count), threads // count)}
    return sorted(calls)


class DataParallel:
    """A model whose batches are computed in parts.

    Args:
        model: takes float [n, …]; gives a tensor whose first dimension is n, or a mapping of such
            tensors. It has no state, and no row depends on its neighbours.
        threads: the number of threads that all parts share.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self._model = model
        self._threads = threads
        # It starts a thread when one is needed first.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows")

    def __call__(self, batch: torch.Tensor) -> Any:
        """Returns the model's answer; without gradients, where there is more than one part.

        Raises:
            TypeError: an answer that has no rows.
        """
        count = part_count(len(batch), self._threads)
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
