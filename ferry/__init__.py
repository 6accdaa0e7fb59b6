"""Serves PyTorch models in batches. `ferry.Model` is one; `ferry.Client(URL)` asks a server."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferry.local_model import local
    from ferry.modeling import Answer, BadInput, Model, Requests, count, model, observe
    from ferry_client import (
        AnswerError,
        AsyncClient,
        AsyncJob,
        BadRequest,
        Client,
        Conflict,
        FerryError,
        Job,
        JobError,
        JobProgress,
        JobState,
        NotFound,
        Overloaded,
        Prediction,
        PredictionFailed,
        ResultGone,
        ServerUnreachable,
        Unauthorized,
        WaitTimeout,
    )

__all__ = [
    "Answer",
    "AnswerError",
    "AsyncClient",
    "AsyncJob",
    "BadInput",
    "BadRequest",
    "Client",
    "Conflict",
    "FerryError",
    "Job",
    "JobError",
    "JobProgress",
    "JobState",
    "Model",
    "NotFound",
    "Overloaded",
    "Prediction",
    "PredictionFailed",
    "Requests",
    "ResultGone",
    "ServerUnreachable",
    "Unauthorized",
    "WaitTimeout",
    "count",
    "local",
    "model",
    "observe",
]

# Where the other names are; a module is loaded when it is first asked for: the commands import
# this package, too, and most of them need no client.
_CLIENT = "ferry_client"
_PLACES = {
    "local": "ferry.local_model",
    **dict.fromkeys(
        ("Answer", "BadInput", "Model", "Requests", "count", "model", "observe"), "ferry.modeling"
    ),
}

if not TYPE_CHECKING:  # else no misspelt name of this package would be found

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_PLACES.get(name, _CLIENT)), name)
        globals()[name] = found
        return found
