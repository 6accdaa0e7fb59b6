"""model-config.yaml: any settings that an archive brings for its model."""

import json
from collections.abc import Mapping
from typing import Any

from batching.errors import InvalidModel
from batching.plain_yaml import load_yaml

_ONE_PROCESS = "a model cannot be spread over several processes"
# Key -> why the handler that needs it will not do what it should.
NOT_HERE: Mapping[str, str] = {
    "torchrun": _ONE_PROCESS,
    "parallelType": _ONE_PROCESS,
    "asyncCommunication": "handlers answer a whole batch at once",
    "continuousBatching": "a batch stays as it was formed until the handler returns",
    "sequenceBatching": "requests of one sequence may go to different workers",
}


def parse_config(text: bytes | None, config_file: str) -> dict[str, Any]:
    """The config as Python values; {} when the file is empty.

    Raises:
        InvalidModel: no file, or not a YAML mapping.
    """
    if text is None:
        raise InvalidModel(f"The manifest names {config_file}, but the archive does not hold it.")
    try:
        config = load_yaml(text)
    except ValueError as error:
        raise InvalidModel(f"{config_file} is not valid YAML: {error}.") from error
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InvalidModel(f"{config_file} is not a YAML mapping.")
    return config


def as_json(config: dict[str, Any], config_file: str) -> dict[str, Any]:
    """The config as it travels; a worker reads the file again and sees dates and the like.

    Raises:
        InvalidModel: JSON has no word for it, as for a key that is a date.
    """
    try:
        return dict(json.loads(json.dumps(config, default=str)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{config_file} holds what JSON cannot express.") from error


def why_not_here(key: str, value: Any) -> str:
    """Why a model whose config says this cannot be served as it is meant to; "" if it can."""
    is_harmless = not value or (key, value) == ("parallelType", "custom")
    if key not in NOT_HERE or is_harmless:
        return ""
    return f"{key}: {value} has no counterpart: {NOT_HERE[key]}"


def require_served(config: Mapping[str, Any]) -> None:
    """Nothing that the config asks for would be left out in silence.

    Raises:
        NotImplementedError: its text says what, and why.
    """
    reasons = [reason for key, value in config.items() if (reason := why_not_here(key, value))]
    if reasons:
        raise NotImplementedError(
            f"model-config.yaml: {'; '.join(reasons)}. A handler that can do without is served "
            "once the archive does not say so."
        )
