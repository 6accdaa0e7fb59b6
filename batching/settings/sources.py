"""Reads settings from a properties file and from TorchServe's environment variables.

Source: TorchServe 0.12 `ConfigManager`, as documented under "Advanced configuration".
"""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import javaproperties

Field = dataclasses.Field[Any]

_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
# Characters that a file can have as \uXXXX.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

# A variable of TorchServe's is `TS_` and the upper-cased key; these have other names, or none.
TS_PREFIX = "TS_"
TS_NAMES = {"token_expiration_min": "TS_TOKEN_EXPIRATION_TIME_MIN"}
TS_NONE = frozenset(
    {
        "io_ratio",
        "metric_time_interval",
        "model_snapshot",
        "models",
        "system_metrics_cmd",
        "use_native_io",
    }
)

# Keys of the file that steer how the rest is read.
ENABLE_ENVIRONMENT = "enable_envvars_config"
ENABLE_ENVIRONMENT_URLS = "use_env_allowed_urls"
SNAPSHOT = "model_snapshot"
STEERING_KEYS = frozenset({ENABLE_ENVIRONMENT, ENABLE_ENVIRONMENT_URLS, SNAPSHOT})

# Switches that TorchServe does not have; `parse_own` reads them more strictly.
OWN_SWITCHES = frozenset(
    {
        "access_log",
        "allow_open_management",
        "config_snapshots",
        "log_files",
        "open_inference_rows",
        "redis_append_only",
        "show_tracebacks",
        "token_authorization",
        "webhook_allow_http",
    }
)

# Other spellings of a key, and what their values mean. `model_api_enabled` is TorchServe 0.11.1's.
KEY_ALIASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "model_api_enabled": ("enable_model_api", {}),
    "model_control_mode": ("enable_model_api", {"explicit": "true", "none": "false"}),
}

# Names of types in messages.
_KINDS: Mapping[type, str] = {int: "whole number", float: "number"}


class SettingsError(ValueError):
    """A setting cannot be used; the message names it and says what would work."""


class UnusableNow(SettingsError):
    """A setting cannot be used now, but may be a moment later."""


def read_properties(path: Path) -> dict[str, str]:
    """Returns the file's keys and values, as they are written.

    Raises:
        SettingsError: the file cannot be read, or has another form.
    """
    try:
        return dict(javaproperties.loads(_decoded(path.read_bytes())))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error


def _decoded(content: bytes) -> str:
    """Decodes UTF-8, or else Latin-1 as Java does: a comment may be in any encoding."""
    if b"\0" in content:
        raise ValueError("it is no text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def file_values(
    properties: Mapping[str, str], by_key: Mapping[str, Field], environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the field values in a file's properties, and the keys without effect, sorted.

    Raises:
        SettingsError: a value has the wrong type, or characters that no environment variable of a
            child can hold, or names a `$$VARIABLE$$` that is not set.
    """
    values: dict[str, Any] = {}
    without_effect = []
    for key, text in properties.items():
        name, meanings = KEY_ALIASES.get(key, (key, {}))
        if name in by_key:
            if _NO_TEXT.search(text):
                raise SettingsError(f"{key} has a character that is no text")
            value = _substitute(text, environment)
            value = _meaning(key, value, meanings) if meanings else value
            read = parse_own if name in OWN_SWITCHES else parse
            values[by_key[name].name] = read(key, by_key[name], value)
        elif key not in STEERING_KEYS:
            without_effect.append(key)
    return values, sorted(without_effect)


def switches_read_as_false(
    properties: Mapping[str, str], by_key: Mapping[str, Field]
) -> dict[str, str]:
    """Returns the switches of a file, with their text, that are neither true nor false.

    TorchServe reads these as false.
    """
    return {
        key: text
        for key, text in properties.items()
        if (key in by_key and by_key[key].type is bool) or key == ENABLE_ENVIRONMENT
        if text.strip().lower() not in ("true", "false", "") and not _VARIABLE.search(text)
    }


def torchserve_environment(
    properties: Mapping[str, str], by_key: Mapping[str, Field], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Returns field values from TorchServe's `TS_*` variables, if the file switches them on.

    Raises:
        SettingsError: a value has the wrong type.
    """
    if not _is_true(properties.get(ENABLE_ENVIRONMENT, "")):
        return {}
    values = {}
    for key, spec in by_key.items():
        variable = TS_NAMES.get(key, TS_PREFIX + key.upper())
        # Control of a process' environment is not yet control of where code is fetched from.
        is_allowed = key != "allowed_urls" or _is_true(properties.get(ENABLE_ENVIRONMENT_URLS, ""))
        if variable in environment and key not in TS_NONE and is_allowed:
            values[spec.name] = parse(variable, spec, environment[variable])
    return values


def parse(name: str, spec: Field, text: str) -> Any:
    """Returns the text as a value of this field.

    Raises:
        SettingsError: the text has the wrong type; the message names its source, `name`.
    """
    kind: Any = spec.type
    if isinstance(kind, types.UnionType):
        if text == "":
            return None
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if kind is bool:
        return _is_true(text)
    try:
        return kind(text.strip())
    except ValueError as error:
        raise SettingsError(
            f"{name}={text!r} is no {_KINDS[kind]}: {spec.metadata['doc']}"
        ) from error


def parse_own(name: str, spec: Field, text: str) -> Any:
    """Parses the text of a variable or key that TorchServe does not have.

    TorchServe reads every text but `true` as false. Here that would leave tokens off for an
    operator who wrote 1 or yes.

    Raises:
        SettingsError: the text has the wrong type.
    """
    if spec.type is bool and text.strip().lower() not in ("true", "false", ""):
        raise SettingsError(f"{name}={text!r} is neither true nor false: {spec.metadata['doc']}")
    return parse(name, spec, text)


def _meaning(key: str, value: str, meanings: Mapping[str, str]) -> str:
    if value.strip().lower() not in meanings:
        raise SettingsError(f"{key}={value!r} is none of: {', '.join(meanings)}")
    return meanings[value.strip().lower()]


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _substitute(text: str, environment: Mapping[str, str]) -> str:
    """Returns the text with each `$$NAME$$` replaced by the variable NAME.

    Source: TorchServe 0.12 ConfigManager.resolveEnvVarVals.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise SettingsError(f"{match[0]} in the configuration: {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(value, text)
