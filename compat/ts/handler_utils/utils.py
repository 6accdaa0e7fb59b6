"""Imports by name, and the streaming helper."""

import importlib
from typing import Any


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Returns the class called `package.module.Class`, or `Class` in module `module_prefix`.

    A function that makes a model is as good.

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
    """These clients have got the next piece of their answers; what the handler returns is the last.

    Blocks while a client is slow. Status and headers count that are set before the first piece.

    Args:
        ret: the pieces, of the kinds that a handler may return. More than are sent do no harm.
        req_id_map: under which number of `ret` each request finds its piece: `context.request_ids`,
            or fewer requests, numbered as you like.
        message: TorchServe's; the context's reason phrase counts.
        code: TorchServe's; the context's status counts.
        context: the one that the handler got.

    Raises:
        RuntimeError: the context is not a worker's, or the handler has returned.
        ValueError: a piece is missing, or a request is not of this batch.
        Exception: no client is left; the handler should let it pass.
    """
    send_pieces = getattr(context, "send_pieces", None)
    if send_pieces is None:
        raise RuntimeError("send_intermediate_predict_response needs the context of a worker")
    send_pieces(ret, req_id_map)
