"""Loads settings: defaults < file < environment < flags < TorchServe's variables.

TorchServe's own `TS_*` variables count only if the file says `enable_envvars_config=true`; then
they win over all others.
Source: TorchServe 0.12 `ConfigManager`, as documented under "Advanced configuration".
"""

import difflib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batching.models.config_keys import SERVER_TYPES, ignored_values
from batching.settings.files import read_properties
from batching.settings.setting import SettingsError
from batching.settings.settings import BY_KEY, ENV_PREFIX, SETTINGS, Settings
from batching.settings.torchserve_keys import (
    ENABLE_ENVIRONMENT,
    ENABLE_ENVIRONMENT_URLS,
    KEY_ALIASES,
    SNAPSHOT,
    STEERING_KEYS,
)
from batching.settings.values import model_settings

_VARIABLE = re.compile(r"\$\$(\w+)\$\$")

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_CORS = ("cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers")
# What TorchServe has for one version in `models`.
_MODEL_WORDS = frozenset({*SERVER_TYPES, "defaultVersion", "marName"})


def load_settings(
    config_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Settings, list[str]]:
    """Returns the settings from all sources, and the file's keys without effect.

    Args:
        config_file: properties, TorchServe's keys included.
        environment: instead of this process' own.
        flags: field values from a command line; None means that a flag was not given.
        defaults: field values for settings that no source names.

    Raises:
        SettingsError: the file cannot be read, or a value cannot be used.
    """
    environment = os.environ if environment is None else environment
    values = dict(defaults or {})
    properties = read_properties(config_file) if config_file is not None else {}
    values |= _file_values(properties, environment)
    if SNAPSHOT in properties:
        values["snapshot_file"] = config_file
        # Its server began with these models; some may have been unregistered since.
        values.pop("load_models", None)
    values |= _from_environment(environment)
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values |= _from_torchserve_variables(properties, environment)
    if values.get("limit_max_image_pixels") is False:
        values["max_image_pixels"] = 0
    if mode := values.get("metrics_mode"):
        values["metrics_mode"] = mode.lower()  # TorchServe accepts any case
    settings = Settings(**values)
    settings.check()
    known = BY_KEY.keys() | KEY_ALIASES.keys() | STEERING_KEYS
    return settings, sorted(properties.keys() - known)


def _file_values(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values in a file.

    Raises:
        SettingsError: a value has the wrong type, or characters that no environment variable of a
            child can hold, or names a `$$VARIABLE$$` that is not set.
    """
    values: dict[str, Any] = {}
    for key, text in properties.items():
        name, meanings = KEY_ALIASES.get(key, (key, {}))
        if name not in BY_KEY:
            continue
        if _NO_TEXT.search(text):
            raise SettingsError(f"{key} has a character that is no text")
        value = _substitute(text, environment)
        if meanings:
            word = value.strip().lower()
            if word not in meanings:
                raise SettingsError(f"{key}={value!r} is none of: {', '.join(meanings)}")
            value = meanings[word]
        setting = BY_KEY[name]
        is_strict = not setting.is_torchserves
        values[setting.name] = setting.parse(key, value, is_strict=is_strict)
    return values


def _substitute(text: str, environment: Mapping[str, str]) -> str:
    """Returns the text with each `$$NAME$$` replaced by the variable NAME.

    Source: TorchServe 0.12 ConfigManager.resolveEnvVarVals.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise SettingsError(f"{match[0]} in the configuration: {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(value, text)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for it in SETTINGS:
        # The field's own name comes last and wins, as children get it.
        keys = (f"{ENV_PREFIX}{name.upper()}" for name in (it.key, it.name))
        for name in (it.variable, *keys):
            if name in environment:
                values[it.name] = it.parse(name, environment[name])
    return values


def _from_torchserve_variables(
    properties: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    if not _is_true(properties.get(ENABLE_ENVIRONMENT, "")):
        return {}
    # Control of a process' environment is not yet control of where code is fetched from.
    has_urls = _is_true(properties.get(ENABLE_ENVIRONMENT_URLS, ""))
    return {
        it.name: it.parse(
            it.ts_variable, environment[it.ts_variable], is_strict=not it.is_torchserves
        )
        for it in SETTINGS
        if it.ts_variable in environment and (it.name != "allowed_urls" or has_urls)
    }


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def switches_read_as_false(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the switches of a file, with their text, that are neither true nor false.

    TorchServe reads these as false.
    """
    switches = {it.key for it in SETTINGS if it.kind is bool} | {ENABLE_ENVIRONMENT}
    return {
        key: text
        for key, text in properties.items()
        if key in switches and text.strip().lower() not in ("true", "false", "")
        if not _VARIABLE.search(text)
    }


def doubts(settings: Settings) -> Iterator[str]:
    """Yields a warning for each setting that works, but is probably a mistake."""
    for name, address in settings.addresses().items():
        path = address.partition("://")[2].partition("/")[2]
        if path:
            yield f"{name}_address: the path /{path} has no effect"
    given = [key for key in _CORS if getattr(settings, key)]
    missing = [key for key in _CORS if key not in given]
    if given and missing:
        yield f"{', '.join(given)}: no effect without {', '.join(missing)}"
    if re.search(r"[,\s]", settings.cors_allowed_origin):
        yield "cors_allowed_origin: browsers take one origin, or *"
    yield from _doubts_of_models(settings)


def _doubts_of_models(settings: Settings) -> Iterator[str]:
    models = model_settings(settings.model_settings).values()
    versions = [words for by_version in models for words in by_version.values()]
    ignored = (ignored_values(_without_lone(words)) for words in versions)
    for complaint in dict.fromkeys(itertools.chain.from_iterable(ignored)):
        yield f"models: {complaint}"
    for word in dict.fromkeys(itertools.chain.from_iterable(versions)):
        alike = difflib.get_close_matches(word, _MODEL_WORDS, n=1, cutoff=0.8)
        if alike and word not in _MODEL_WORDS:
            yield f"models: {word} has no effect; did you mean {alike[0]}?"


def _without_lone(version: Mapping[str, Any]) -> Mapping[str, Any]:
    # The archive's model-config.yaml may have the other one of the two.
    pair = {"minWorkers", "maxWorkers"}
    lone = pair if not pair <= version.keys() else set()
    return {word: value for word, value in version.items() if word not in lone}
