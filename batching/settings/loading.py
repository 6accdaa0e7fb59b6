"""Loads settings: defaults < file < environment < flags < TorchServe's variables.

TorchServe's own `TS_*` variables count only if the file says `enable_envvars_config=true`; then
they win over all others.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batching.settings.checks import check_settings
from batching.settings.settings import ENV_PREFIX, Settings
from batching.settings.sources import (
    SNAPSHOT,
    file_values,
    parse,
    parse_own,
    read_properties,
    torchserve_environment,
)

# Variables of other programs, and the fields that they set; a FERRY_ variable wins.
_FOREIGN_VARIABLES = {"REDIS_URL": "redis_url", "LOG_LOCATION": "log_location"}


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
    by_key = Settings.fields_by_key()
    from_file, without_effect = file_values(properties, by_key, environment)
    values |= from_file
    if SNAPSHOT in properties:
        values["snapshot_file"] = config_file
        # Its server began with these models; some may have been unregistered since.
        values.pop("load_models", None)
    values |= _from_environment(environment)
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values |= torchserve_environment(properties, by_key, environment)
    if values.get("limit_max_image_pixels") is False:
        values["max_image_pixels"] = 0
    if mode := values.get("metrics_mode"):
        values["metrics_mode"] = mode.lower()  # TorchServe accepts any case
    settings = Settings(**values)
    check_settings(settings)
    return settings, without_effect


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    fields = Settings.fields()
    for variable, name in _FOREIGN_VARIABLES.items():
        if variable in environment:
            values[name] = parse(variable, fields[name], environment[variable])
    # The field's own name comes last and wins: children get it.
    for words, spec in (*Settings.fields_by_key().items(), *fields.items()):
        variable = ENV_PREFIX + words.upper()
        if (text := environment.get(variable)) is not None:
            values[spec.name] = parse_own(variable, spec, text)
    return values
