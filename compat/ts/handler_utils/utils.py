"""Imports by name, and the streaming helper."""

import importlib
from typing import Any


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """The class called `package.module.Class`, or `Class` in module `module_prefix`.

    Raises:
        ImportError: no such module or class.
    """
    module_name, _, name = class_name.rpartition(".")
    full_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not full_name:
        raise ImportError(f"{class_name} does not name a module")
    try:
        found = getattr(importlib.import_module(full_name), name)
    except AttributeError as error:
        raise ImportError(f"{full_name} has no class {name}") from error
    if not isinstance(found, type):
        raise ImportError(f"{full_name}.{name} is not a class")
    return found


def send_intermediate_predict_response(
    ret: list[Any], req_id_map: dict[int, str], message: str, code: int, context: Any = None
) -> None:
    """Streams are not served yet; the handler that wants one says so in its worker's log.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "send_intermediate_predict_response: streamed answers are not supported yet; "
        "return the whole answer from the handler"
    )
