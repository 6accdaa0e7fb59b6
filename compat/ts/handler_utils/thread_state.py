"""Lets threads of ours run a handler's steps as the thread would that asks for them."""

import contextlib
import contextvars
import sys
from collections.abc import Callable
from typing import Any

AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def with_own_state(step: Callable[..., Any], cores: int | None = None) -> Callable[..., Any]:
    """Returns the step for other threads, with this thread's context and its settings of torch.

    Torch keeps these for each thread: grad mode, inference mode, autocast, default device, stream
    of the GPU. The default dtype is the process's.

    Args:
        step: is called with positional arguments.
        cores: on how many torch computes there; None: on as many as here.
    """
    context, torch = contextvars.copy_context(), sys.modules.get("torch")
    enter = None if torch is None else _entering(torch, cores or torch.get_num_threads())

    def run(*arguments: Any) -> Any:
        with contextlib.ExitStack() as entered:
            if enter is not None:
                enter(entered)
            return step(*arguments)

    # A context can be entered by one thread at a time.
    return lambda *arguments: context.copy().run(run, *arguments)


def _entering(torch: Any, cores: int) -> Callable[[contextlib.ExitStack], None]:
    is_inference, has_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    is_caching = torch.is_autocast_cache_enabled()
    dtypes = {
        kind: torch.get_autocast_dtype(kind)
        for kind in AUTOCAST_DEVICES
        if torch.is_autocast_enabled(kind)
    }
    device = torch.get_default_device()
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def enter(entered: contextlib.ExitStack) -> None:
        # It stays so: a new thread takes the number that any thread has set last.
        if torch.get_num_threads() != cores:
            torch.set_num_threads(cores)
        entered.enter_context(torch.inference_mode(is_inference))
        entered.enter_context(torch.set_grad_enabled(has_grad))
        for kind, dtype in dtypes.items():
            entered.enter_context(torch.autocast(kind, dtype, cache_enabled=is_caching))
        if device.type != "cpu":  # as a device that is entered slows every call down
            entered.enter_context(device)
        if stream is not None:
            entered.enter_context(torch.cuda.stream(stream))

    return enter
