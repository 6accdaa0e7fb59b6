"""Serves PyTorch models in batches. `ferry.Model` is one; `ferry.Client(URL)` asks a server."""

import importlib
from typing import TYPE_CHECKING, Any

from ferry.modeling import Answer, BadInput, Model, Requests, count, model, observe

if TYPE_CHECKING:
    from ferry.local_model import local
    from ferry_client import *  # noqa: F403 - as `ferry_client` says

__all__ = ["Answer", "BadInput", "Model", "Requests", "count", "local", "model", "observe"]

if not TYPE_CHECKING:  # else no misspelt name of this package would be found

    def __getattr__(name: str) -> Any:
        """Loads what needs more modules when it is first asked for: most commands need neither."""
        module = importlib.import_module("ferry.local_model" if name == "local" else "ferry_client")
        if name != "local" and name not in module.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(module, name)
        return globals()[name]
