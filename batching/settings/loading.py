"""Loads settings: defaults < file < environment < flags < TorchServe's variables.

TorchServe's own `TS_*` variables count only if the file says `enable_envvars_config=true`; then
they win over all others.
Source: TorchServe 0.12 `ConfigManager`, as documented under "Advanced configuration".
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batching.settings.files import read_properties
from batching.settings.setting import Setting, SettingsError
from batching.settings.settings import BY_KEY, ENV_PREFIX, SETTINGS, Settings
from batching.settings.torchserve_keys import (
    CONTROL_MODES,
    ENABLE_ENVIRONMENT,
    ENABLE_ENVIRONMENT_URLS,
    KEY_ALIASES,
    SNAPSHOT,
    UNDERSTOOD,
)

_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


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
        # The snapshot's server began with these models; some may have been unregistered since.
        values.pop("load_models", None)
    values |= _from_environment(environment)
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values |= _from_torchserve_variables(properties, environment)
    if values.get("limit_max_image_pixels") is False:
        values["max_image_pixels"] = 0
    for it in SETTINGS:
        if it.choices and it.name in values:
            values[it.name] = values[it.name].lower()
    settings = Settings(**values)
    settings.check()
    return settings, sorted(properties.keys() - UNDERSTOOD)


def _file_values(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values in a file.

    Raises:
        SettingsError: a value has the wrong type, or characters that no environment variable of a
            child can hold, or names a `$$VARIABLE$$` that is not set.
    """

    def variable(match: re.Match[str]) -> str:
        # Source: TorchServe 0.12 ConfigManager.resolveEnvVarVals.
        if match[1] not in environment:
            raise SettingsError(f"{match[0]} in the configuration: {match[1]} is not set")
        return environment[match[1]]

    values: dict[str, Any] = {}
    for key, text in properties.items():
        it = BY_KEY.get(KEY_ALIASES.get(key, key))
        if it is None:
            continue
        if _NO_TEXT.search(text):
            raise SettingsError(f"{key} has a character that is no text")
        value = _VARIABLE.sub(variable, text)
        if key == "model_control_mode":
            if (mode := value.strip().lower()) not in CONTROL_MODES:
                raise SettingsError(f"{key}={value!r} is not one of: {', '.join(CONTROL_MODES)}")
            value = CONTROL_MODES[mode]
        values[it.name] = _torchserve_value(it, key, value)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for it in SETTINGS:
        # The field's own name comes last and wins: parents pass it to children.
        for name in (it.variable, *(f"{ENV_PREFIX}{own.upper()}" for own in (it.key, it.name))):
            if name in environment:
                values[it.name] = it.parse(name, environment[name])
    return values


def _from_torchserve_variables(
    properties: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    if not _is_true(properties, ENABLE_ENVIRONMENT):
        return {}
    # Who sets variables may not yet choose where code is fetched from.
    has_urls = _is_true(properties, ENABLE_ENVIRONMENT_URLS)
    return {
        it.name: _torchserve_value(it, it.ts_variable, environment[it.ts_variable])
        for it in SETTINGS
        if it.ts_variable in environment and (it.name != "allowed_urls" or has_urls)
    }


def _torchserve_value(setting: Setting, source: str, text: str) -> Any:
    return setting.parse(source, text, is_strict=not setting.is_torchserves)


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "").strip().lower() == "true"


def switches_read_as_false(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the file's switches that are neither `true` nor `false`, with their texts.

    TorchServe reads these as false.
    """
    switches = {it.key for it in SETTINGS if it.kind is bool} | {ENABLE_ENVIRONMENT}
    return {
        key: text
        for key, text in properties.items()
        if key in switches and text.strip().lower() not in ("true", "false", "")
        if not _VARIABLE.search(text)
    }
