"""Runs and times a handler's steps, imports classes by name, and streams pieces of answers."""

import contextvars
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def config_of(handler: Any) -> dict[str, Any]:
    """Returns the handler's model-config.yaml; {} before the handler has a context."""
    return getattr(getattr(handler, "context", None), "model_yaml_config", None) or {}


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


def answer_batch(
    handler: Any, data: Any, context: Any, run_steps: Callable[[Any], list[Any]]
) -> list[Any]:
    """Returns the output of `run_steps`, of the profiler, or a description; measures the time."""
    started_s = time.perf_counter()
    handler.context = context
    if handler._is_describe():  # noqa: SLF001 - TorchServe's names, here and below
        output = [handler.describe_handle()]
    elif os.environ.get("ENABLE_TORCH_PROFILER"):
        output, _ = handler._infer_with_profiler(data)  # noqa: SLF001
    else:
        output = run_steps(data)
    elapsed_ms = round((time.perf_counter() - started_s) * 1000, 2)
    context.metrics.add_time("HandlerTime", elapsed_ms, None, "ms")
    return output


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Returns the class or function `package.module.Class`, or `Class` in module `module_prefix`.

    Raises:
        ImportError: no such module or class.
    """
    module_name, _, name = class_name.rpartition(".")
    full_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not full_name:
        raise ImportError(f"{class_name} does not name a module")
    try:
        return getattr(importlib.import_module(full_name), name)
    except AttributeError as error:
        raise ImportError(f"{full_name} has no class {name}") from error


def send_intermediate_predict_response(
    ret: Any, req_id_map: dict[int, str], message: str, code: int, context: Any = None
) -> None:
    """Sends clients the next piece of their answers; the handler's result is the last piece.

    Blocks while a client is slow. Status and headers must be set before the first piece.

    Args:
        ret: the pieces, of the kinds that a handler may return. Extra pieces do no harm.
        req_id_map: index of `ret` -> id of the request that gets this piece: either
            `context.request_ids`, or fewer requests, with numbers of your choice.
        message: without effect; the context's reason phrase is sent.
        code: without effect; the context's status is sent.
        context: the context that the handler was given.

    Raises:
        RuntimeError: the context is not a worker's, or the handler has returned.
        ValueError: a piece is missing, or a request is not of this batch.
        Exception: no client is left; the handler should not catch it.
    """
    send_pieces = getattr(context, "send_pieces", None)
    if send_pieces is None:
        raise RuntimeError("send_intermediate_predict_response needs the context of a worker")
    send_pieces(ret, req_id_map)
