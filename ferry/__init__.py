"""Serves PyTorch models in batches. `ferry.Model` is one; `ferry.Client(URL)` asks a server."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferry.client.answer_errors import (
        AnswerError,
        BadRequest,
        Conflict,
        FerryError,
        NotFound,
        Overloaded,
        PredictionFailed,
        ResultGone,
        ServerUnreachable,
        Unauthorized,
        WaitTimeout,
    )
    from ferry.client.async_client import AsyncClient, AsyncJob
    from ferry.client.job_state import JobError, JobProgress, JobState
    from ferry.client.prediction import Prediction
    from ferry.client.sync_client import Client, Job
    from ferry.local_model import local
    from ferry.modeling import Answer, BadInput, Model, Requests, count, model, observe

_ERRORS = "ferry.client.answer_errors"
_MODEL = "ferry.modeling"
# Name -> the module that has it, loaded when it is first asked for: the commands import this
# package, too, and most of them need no client.
_PLACES = {
    "Answer": _MODEL,
    "AnswerError": _ERRORS,
    "AsyncClient": "ferry.client.async_client",
    "AsyncJob": "ferry.client.async_client",
    "BadInput": _MODEL,
    "BadRequest": _ERRORS,
    "Client": "ferry.client.sync_client",
    "Conflict": _ERRORS,
    "FerryError": _ERRORS,
    "Job": "ferry.client.sync_client",
    "JobError": "ferry.client.job_state",
    "JobProgress": "ferry.client.job_state",
    "JobState": "ferry.client.job_state",
    "Model": _MODEL,
    "NotFound": _ERRORS,
    "Overloaded": _ERRORS,
    "Prediction": "ferry.client.prediction",
    "PredictionFailed": _ERRORS,
    "Requests": _MODEL,
    "ResultGone": _ERRORS,
    "ServerUnreachable": _ERRORS,
    "Unauthorized": _ERRORS,
    "WaitTimeout": _ERRORS,
    "count": _MODEL,
    "local": "ferry.local_model",
    "model": _MODEL,
    "observe": _MODEL,
}

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

if not TYPE_CHECKING:  # else no misspelt name of this package would be found

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_PLACES[name]), name)
        globals()[name] = found
        return found
