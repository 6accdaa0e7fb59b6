"""Splits a batch so that preprocessing of one part overlaps with inference of another."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ts.handler_utils.utils import answer_batch, with_own_state

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
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._parallelism = dict.fromkeys(STEPS, 1)
        self.parallelism = parallelism or {}

    @property
    def parallelism(self) -> dict[str, int]:
        """Returns the threads per step. Setting it for some steps leaves the others unchanged."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: dict[str, int]) -> None:
        if unknown := set(parallelism) - set(STEPS):
            raise ValueError(f"parallelism knows {', '.join(STEPS)}, not {', '.join(unknown)}")
        self.shutdown()
        wanted = {**self._parallelism, **parallelism}
        self._parallelism = {step: max(1, wanted[step]) for step in STEPS}
        self._pools = {
            step: ThreadPoolExecutor(count, f"micro-batch-{step}")
            for step, count in self._parallelism.items()
        }

    def get_micro_batch_idx(self) -> int | None:
        """Returns which part of the batch the calling step works on, counting from 0.

        None if it works on the whole batch: under the profiler, or for an explanation.
        """
        return getattr(self._local, "index", None)

    def shutdown(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()

    def __call__(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Returns one output per row, or the explanation or description that the request asks for.

        Only outputs are made in parts; with the profiler on, they are not, as in TorchServe.

        Source: TorchServe ts/handler_utils/micro_batching.py @525656c, as an interface.
        """
        return answer_batch(self.handler, data, context, self._run_steps)

    def _run_steps(self, data: list[dict[str, Any]]) -> list[Any]:
        handler = self.handler
        if handler._is_explain():  # noqa: SLF001 - TorchServe's name
            return handler.explain_handle(handler.preprocess(data), data)  # type: ignore[no-any-return]
        return self.handle(data)

    def handle(self, data: list[dict[str, Any]]) -> list[Any]:
        """Returns one output per row, in their order; raises the error of the first failing part.

        Each step of a part waits in a thread of its own for the step before it. This cannot lock
        up: every pool works first in, first out, and waits for an earlier pool. It waits for all
        steps, as a late one would set its status or header for a request of the next batch.
        """
        run, size = with_own_state(self._run), self.micro_batch_size
        last_steps: list[Future[Any]] = []
        for index, start in enumerate(range(0, len(data), size)):
            previous: Future[Any] = Future()
            previous.set_result(data[start : start + size])
            for step in STEPS:
                previous = self._pools[step].submit(run, step, index, previous)
            last_steps.append(previous)
        wait(last_steps)
        return [output for step in last_steps for output in step.result()]

    def _run(self, step: str, index: int, previous: Future[Any]) -> Any:
        rows = previous.result()
        self._local.index = index
        return getattr(self.handler, step)(rows)
