"""Times the steps of a handler, by `@timed`."""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from ts.handler_utils.utils import config_of


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Emits `ts_handler_<method>` in ms when model-config.yaml says `handler: {profile: true}`."""

    @functools.wraps(method)
    def measure(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (config_of(self).get("handler") or {}).get("profile", False):
            return method(self, *args, **kwargs)
        started_s = _time_of_gpu_s()
        result = method(self, *args, **kwargs)
        elapsed_ms = (_time_of_gpu_s() - started_s) * 1000
        self.context.metrics.add_time(f"ts_handler_{method.__name__}", elapsed_ms)
        return result

    return measure


def _time_of_gpu_s() -> float:
    """Returns the time, after it has waited for the GPU: its work counts for the step before."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
