"""model-config.yaml: any settings that an archive brings for its model."""

import json
from typing import Any

from batching.errors import InvalidModel
from batching.settings.safe_yaml import load_yaml


def parse_config(text: bytes | None, config_file: str) -> dict[str, Any]:
    """Returns the config as Python values; {} when the file is empty.

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
    """Returns the config as it travels; a worker reads the file again and sees dates and the like.

    Raises:
        InvalidModel: JSON has no word for it, as for a key that is a date.
    """
    try:
        return dict(json.loads(json.dumps(config, default=str)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{config_file} holds what JSON cannot express: {error}.") from error
