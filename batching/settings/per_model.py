"""Parses the `models` of config.properties: settings of single model versions, as JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from batching.models.config_keys import SERVER_TYPES
from batching.settings.sources import SettingsError

# {model: {version: {batchSize: 8, ...}}}; the words are those of model-config.yaml.
ModelSettings = Mapping[str, Mapping[str, Mapping[str, Any]]]

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBERS = frozenset(word for word, wanted in SERVER_TYPES.items() if wanted is int)


def model_settings(text: str) -> ModelSettings:
    """Parses the text of `models`.

    Raises:
        SettingsError: the text has another form.
    """
    if not text.strip():
        return {}
    try:
        models = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])
    except msgspec.ValidationError as error:
        form = '{"model": {"version": {"batchSize": 8}}}'
        raise SettingsError(f"models: write {form} ({error})") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise SettingsError(f"models: this is not JSON ({error})") from error
    return {
        name: {
            version: {word: _value(word, one[word]) for word in one} for version, one in of.items()
        }
        for name, of in models.items()
    }


def _value(word: str, value: object) -> object:
    if word not in _NUMBERS:
        return value
    # TorchServe accepts numbers in quotes, too (Gson's `getAsInt`).
    if not _INTEGER.fullmatch(str(value)):
        raise SettingsError(f"models: {word} is a whole number, not {json.dumps(value)}")
    return int(str(value))
