"""Checks the keys of model-config.yaml: which the server reads, and which it cannot honour."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from batching.errors import InvalidModel
from batching.models.spec import PARAMETERS

# Key -> the type that counts.
SERVER_TYPES: Mapping[str, type] = {it.word: it.kind for it in PARAMETERS}

_ONE_PROCESS = "a model cannot be spread over several processes"
# Key -> why a handler that needs it would answer wrongly.
NOT_HERE: Mapping[str, str] = {
    "torchrun": _ONE_PROCESS,
    "parallelType": _ONE_PROCESS,
    "asyncCommunication": "handlers answer a whole batch at once",
    "continuousBatching": "a batch stays as it was formed until the handler returns",
    "sequenceBatching": "requests of one sequence may go to different workers",
}
_NO_SEQUENCES = "there is no sequence batching"
# Key -> what happens instead.
WITHOUT_EFFECT: Mapping[str, str] = {
    "useVenv": "requirements.txt, if installed at all, always gets an environment of its own",
    "parallelLevel": "a worker is one process",
    "useJobTicket": "requests wait, up to job_queue_size",
    "sequenceMaxIdleMSec": _NO_SEQUENCES,
    "sequenceTimeoutMSec": _NO_SEQUENCES,
    "maxNumSequence": _NO_SEQUENCES,
    "maxSequenceJobQueueSize": _NO_SEQUENCES,
}


def ignored_values(
    config: Mapping[str, Any], types: Mapping[str, type] = SERVER_TYPES
) -> Iterator[str]:
    """Yields a sentence for each value that counts as missing, as it does in TorchServe."""
    for key, wanted in types.items():
        if key in config and not has_type(config[key], wanted):
            value = reprlib.repr(config[key])
            yield f"{key}: {value} is ignored, it should be of type {wanted.__name__}"
    is_given = config.get("minWorkers") is not None or config.get("maxWorkers") is not None
    if is_given and worker_range(config) is None:
        yield "minWorkers and maxWorkers are ignored: give both, 0 < minWorkers <= maxWorkers"


def worker_range(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns `minWorkers` and `maxWorkers`; None unless both are there and make sense."""
    low: Any = config.get("minWorkers")
    high: Any = config.get("maxWorkers")
    is_pair = has_type(low, int) and has_type(high, int)
    return (low, high) if is_pair and 0 < low <= high else None


def has_type(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def why_not_here(key: str, value: Any) -> str:
    """Explains why a model with this setting cannot be served; "" if it can."""
    is_harmless = not value or (key, value) == ("parallelType", "custom")
    if key not in NOT_HERE or is_harmless:
        return ""
    return f"{key}: {value} has no counterpart: {NOT_HERE[key]}"


def require_served(config: Mapping[str, Any]) -> None:
    """Refuses a model that asks for something that is left out.

    Raises:
        InvalidModel: the model asks for it; the message says for what, and why that is left out.
    """
    reasons = [reason for key, value in config.items() if (reason := why_not_here(key, value))]
    if reasons:
        raise InvalidModel(
            f"model-config.yaml: {'; '.join(reasons)}. A handler that can do without is served "
            "once the archive does not say so."
        )
