"""Checks the types of what the server reads in model-config.yaml."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from batching.models.spec import PARAMETERS

# Key -> the type that counts.
SERVER_TYPES: Mapping[str, type] = {one.word: one.kind for one in PARAMETERS if one.is_in_files}


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
    """Returns whether the value is of this type; true and false are no integers."""
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
