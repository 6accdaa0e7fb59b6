"""What the server reads of model-config.yaml, and what it does not although it is there."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

# Key -> the type that counts.
SERVER_TYPES: Mapping[str, type] = {
    "minWorkers": int,
    "maxWorkers": int,
    "batchSize": int,
    "maxBatchDelay": int,
    "batchPolicy": str,
    "latencySloMs": int,
    "responseTimeout": int,
    "startupTimeout": int,
    "deviceType": str,
    "deviceIds": list,
    "maxRetryTimeoutInSec": int,
    "clientTimeoutInMills": int,
    "jobQueueSize": int,
    "useJobTicket": bool,
}


def ignored_values(
    config: Mapping[str, Any], types: Mapping[str, type] = SERVER_TYPES
) -> Iterator[str]:
    """Yields a sentence for each value that counts as missing, as it does in TorchServe."""
    for key, wanted in types.items():
        if key in config and not _has_type(config[key], wanted):
            value = reprlib.repr(config[key])
            yield f"{key}: {value} is ignored, it should be of type {wanted.__name__}"
    low, high = config.get("minWorkers"), config.get("maxWorkers")
    if (low is not None or high is not None) and not (
        isinstance(low, int) and isinstance(high, int) and 0 < low <= high
    ):
        yield "minWorkers and maxWorkers are ignored: give both, 0 < minWorkers <= maxWorkers"


def _has_type(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
