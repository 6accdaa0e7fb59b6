"""The built-in image classifier with a stopwatch on each step; archived by `benchmarks.gpu`.

The GPU is waited for after each step, so a step's time is its own, and the whole is slower.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpu_strict_handler import StrictClassifier
from ts.metrics.metric_type_enum import MetricTypes


class TimedClassifier(StrictClassifier):
    """Counts the milliseconds of each step in `step_<name>`."""

    def _images(self, data: Any) -> Any:
        with self._timed("decode"):
            return super()._images(data)

    def _stacked(self, images: Any) -> Any:
        with self._timed("to_device"):
            return super()._stacked(images)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        with self._timed("forward"):
            return super().inference(data, *args, **kwargs)

    def postprocess(self, data: Any) -> Any:
        with self._timed("from_device"):
            return super().postprocess(data)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        self.context.metrics.add_metric(
            f"step_{step}", elapsed_ms, "ms", metric_type=MetricTypes.COUNTER
        )
