"""Imports classes by name, runs a handler's steps, and streams pieces of answers."""

import importlib
import os
import time
from collections.abc import Callable
from typing import Any


def config_of(handler: Any) -> dict[str, Any]:
    """Returns the handler's model-config.yaml; {} before the handler has a context."""
    return getattr(getattr(handler, "context", None), "model_yaml_config", None) or {}


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
