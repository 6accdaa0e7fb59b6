"""`@timed` for the steps of a handler."""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Emits `ts_handler_<method>` in ms when model-config.yaml says `handler: {profile: true}`."""

    @functools.wraps(method)
    def measure(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_profiled(self):
            return method(self, *args, **kwargs)
        _wait_for_gpu()
        started_s = time.perf_counter()
        result = method(self, *args, **kwargs)
        _wait_for_gpu()
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        self.context.metrics.add_time(f"ts_handler_{method.__name__}", elapsed_ms)
        return result

    return measure


def _is_profiled(handler: Any) -> bool:
    # A handler that does not call BaseHandler's constructor may have no context yet.
    config = getattr(getattr(handler, "context", None), "model_yaml_config", None) or {}
    return bool((config.get("handler") or {}).get("profile", False))


def _wait_for_gpu() -> None:
    """Waits for the GPU, whose time would otherwise count as the next step's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
