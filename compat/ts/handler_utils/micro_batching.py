"""Splits a batch so that preprocessing of one part overlaps with inference of another."""

import os
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

STEPS = ("preprocess", "inference", "postprocess")


class MicroBatching:
    """Takes the place of a handler's `handle`: `self.handle = MicroBatching(self, 4)`.

    Every step has its own threads, `parallelism[step]` of them, one by default.
    """

    def __init__(
        self,
        parent_handler: Any,
        micro_batch_size: int = 1,
        parallelism: dict[str, int] | None = None,
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._local = threading.local()
        self._core_count: int | None = None
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._parallelism = dict.fromkeys(STEPS, 1)
        self.parallelism = parallelism or {}

    @property
    def parallelism(self) -> dict[str, int]:
        """Threads per step. Steps that are not named when it is set keep theirs."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: dict[str, int]) -> None:
        if unknown := set(parallelism) - set(STEPS):
            raise ValueError(f"parallelism knows {', '.join(STEPS)}, not {', '.join(unknown)}")
        self.shutdown()
        wanted = {**self._parallelism, **parallelism}
        self._parallelism = {step: max(1, wanted[step]) for step in STEPS}
        self._pools = {
            step: ThreadPoolExecutor(count, f"micro-batch-{step}", self._take_cores)
            for step, count in self._parallelism.items()
        }

    def get_micro_batch_idx(self) -> int | None:
        """Which part of the batch the calling step works on, counting from 0.

        None where it works on the whole one: under the profiler, or for an explanation.
        """
        return getattr(self._local, "index", None)

    def shutdown(self) -> None:
        """Ends the threads."""
        for pool in self._pools.values():
            pool.shutdown()

    def __call__(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """One output per row, or the explanation or description that the request asks for.

        Only outputs are made in parts. With the profiler on, as in TorchServe, nothing is.

        Source: TorchServe ts/handler_utils/micro_batching.py @525656c, as an interface.
        """
        started_s = time.perf_counter()
        handler = self.handler
        handler.context = context
        if handler._is_describe():  # noqa: SLF001 - TorchServe's names, here and below
            output = [handler.describe_handle()]
        elif os.environ.get("ENABLE_TORCH_PROFILER"):
            output, _ = handler._infer_with_profiler(data)  # noqa: SLF001
        elif handler._is_explain():  # noqa: SLF001
            output = handler.explain_handle(handler.preprocess(data), data)
        else:
            output = self.handle(data)
        elapsed_ms = round((time.perf_counter() - started_s) * 1000, 2)
        context.metrics.add_time("HandlerTime", elapsed_ms, None, "ms")
        return output

    def handle(self, data: list[dict[str, Any]]) -> list[Any]:
        """One output per row, in their order; raises what the first failing part raised.

        No step runs any more by then: the status or header that a late one sets would go to a
        request of the next batch.
        """
        self._core_count = _core_count()
        size = self.micro_batch_size
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        last_steps = [self._start(index, part) for index, part in enumerate(parts)]
        wait(last_steps)
        return [output for step in last_steps for output in step.result()]

    def _take_cores(self) -> None:
        # Each thread of torch's callers has a number of its own. A new one takes what any other
        # thread has set last, and those that decode images set 1.
        if self._core_count is not None and self._core_count != _core_count():
            sys.modules["torch"].set_num_threads(self._core_count)

    def _start(self, index: int, part: list[dict[str, Any]]) -> Future[Any]:
        """Queues all steps of one part; each waits for the one before it in its own thread.

        This cannot lock up: every pool works first in, first out, and waits for an earlier pool.
        """
        previous: Future[Any] | None = None
        for step in STEPS:
            previous = self._pools[step].submit(self._run, step, index, part, previous)
        return previous  # type: ignore[return-value]

    def _run(
        self, step: str, index: int, part: list[dict[str, Any]], previous: Future[Any] | None
    ) -> Any:
        value = part if previous is None else previous.result()
        self._local.index = index
        return getattr(self.handler, step)(value)


def _core_count() -> int | None:
    """Returns how many cores torch uses for a call from this thread.

    None where nobody has loaded it.
    """
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None
