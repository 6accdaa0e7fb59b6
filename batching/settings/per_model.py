"""The `models` of config.properties: settings of single model versions, as JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

from batching.models.config_types import SERVER_TYPES
from batching.settings.sources import SettingsError

# {model: {version: {batchSize: 8, ...}}}; the words are those of model-config.yaml.
ModelSettings = Mapping[str, Mapping[str, Mapping[str, Any]]]

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBERS = frozenset(word for word, wanted in SERVER_TYPES.items() if wanted is int)


def model_settings(text: str) -> ModelSettings:
    """Parses the `models` of config.properties: model → version → settings.

    Raises:
        SettingsError: the text is something else.
    """
    if not text.strip():
        return {}
    try:
        models = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"models: this is not JSON ({error})") from error
    versions = models.values() if isinstance(models, dict) else [None]
    if not all(isinstance(one, dict) and all(map(_is_object, one.values())) for one in versions):
        raise SettingsError('models: write {"model": {"version": {"batchSize": 8}}}')
    return {
        name: {version: _with_numbers(one) for version, one in versions.items()}
        for name, versions in models.items()
    }


def _with_numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        word: _number(word, value) if word in _NUMBERS else value
        for word, value in settings.items()
    }


def _number(word: str, value: object) -> int:
    # TorchServe takes numbers in quotes, too (Gson's `getAsInt`).
    if not _INTEGER.fullmatch(str(value)):
        raise SettingsError(f"models: {word} is a whole number, not {json.dumps(value)}")
    return int(str(value))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
