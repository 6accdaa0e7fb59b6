"""Asks a running server for predictions and jobs, from Python.

`flows` decides what to send, how to read the answer and when to try again; the blocking and the
asynchronous client only carry that out.
"""

from ferry_client.async_client import AsyncClient, AsyncJob
from ferry_client.client import Client, Job
from ferry_client.errors import (
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
from ferry_client.jobs import JobError, JobProgress, JobState, Prediction

__all__ = [
    "AnswerError",
    "AsyncClient",
    "AsyncJob",
    "BadRequest",
    "Client",
    "Conflict",
    "FerryError",
    "Job",
    "JobError",
    "JobProgress",
    "JobState",
    "NotFound",
    "Overloaded",
    "Prediction",
    "PredictionFailed",
    "ResultGone",
    "ServerUnreachable",
    "Unauthorized",
    "WaitTimeout",
]
