"""Runs a handler's steps in other threads with the state of the thread that asks."""

import contextvars
import sys
from collections.abc import Callable
from typing import Any


def with_own_state(step: Callable[..., Any], cores: int | None = None) -> Callable[..., Any]:
    """Returns the step for other threads, with this thread's context, grad and inference mode.

    Args:
        step: is called with positional arguments.
        cores: on how many torch computes there; None: on as many as here.
    """
    context, torch = contextvars.copy_context(), sys.modules.get("torch")
    if torch is None:
        return lambda *arguments: context.copy().run(step, *arguments)
    threads = cores or torch.get_num_threads()
    is_inference, has_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def run(*arguments: Any) -> Any:
        # Never reset: a new thread takes the number that any thread has set last.
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode(is_inference), torch.set_grad_enabled(has_grad):
            return step(*arguments)

    # A context can be entered by one thread at a time.
    return lambda *arguments: context.copy().run(run, *arguments)
