"""`@timed` for the steps of a handler."""

import functools
import time
from collections.abc import Callable
from typing import Any


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Emits `ts_handler_<method>` in ms when model-config.yaml says `handler: {profile: true}`."""

    @functools.wraps(method)
    def measure(self: Any, *args: Any, **kwargs: Any) -> Any:
        started_s = time.perf_counter()
        result = method(self, *args, **kwargs)
        # A handler that does not call BaseHandler's constructor may have no context yet.
        config = getattr(getattr(self, "context", None), "model_yaml_config", None) or {}
        if (config.get("handler") or {}).get("profile", False):
            elapsed_ms = (time.perf_counter() - started_s) * 1000
            self.context.metrics.add_time(f"ts_handler_{method.__name__}", elapsed_ms)
        return result

    return measure
