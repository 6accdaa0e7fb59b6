"""Where settings come from: a properties file, TorchServe's environment variables, and our own.

Source: TorchServe 0.12 `ConfigManager`, as documented under "Advanced configuration".
"""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import javaproperties

Field = dataclasses.Field[Any]

_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
# A file can have them as \uXXXX.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

# TorchServe's variables are `TS_` and the upper-cased key, but for these.
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

# Switches that TorchServe does not have: `parse_own` says why they are read more strictly.
OWN_SWITCHES = frozenset(
    {
        "access_log",
        "allow_open_management",
        "config_snapshots",
        "log_files",
        "open_inference_rows",
        "token_authorization",
    }
)

# Other spellings of a key, and what their values mean. `model_api_enabled` is TorchServe 0.11.1's.
KEY_ALIASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "model_api_enabled": ("enable_model_api", {}),
    "model_control_mode": ("enable_model_api", {"explicit": "true", "none": "false"}),
}


# What these types are called by people.
_KINDS: Mapping[type, str] = {int: "whole number", float: "number"}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what would do."""


class UnusableNow(SettingsError):
    """Nothing is wrong with the setting as such: a moment later it may do."""


def read_properties(path: Path) -> dict[str, str]:
    """Returns the file's keys and values, as they are written.

    Raises:
        SettingsError: there is no such file, or it is something else.
    """
    try:
        return dict(javaproperties.loads(_decoded(path.read_bytes())))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error


def _decoded(content: bytes) -> str:
    """Returns the text, in UTF-8 or as Java reads such files: a comment may be in any encoding."""
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
        SettingsError: a value of the wrong type or that no variable of a child can hold, or a
            `$$NAME$$` whose variable is not set.
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
    """Returns what a file says of switches that is neither true nor false.

    To TorchServe that is false.
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
    """Field values from TorchServe's `TS_*` variables; none unless the file switches them on.

    Raises:
        SettingsError: a value of the wrong type.
    """
    if not _is_true(properties.get(ENABLE_ENVIRONMENT, "")):
        return {}
    return {
        spec.name: parse(variable, spec, environment[variable])
        for key, spec, variable in _torchserve_variables(properties, by_key)
        if variable in environment
    }


def _torchserve_variables(
    properties: Mapping[str, str], by_key: Mapping[str, Field]
) -> Iterator[tuple[str, Field, str]]:
    for key, spec in by_key.items():
        if key in TS_NONE:
            continue
        # Whoever sets a process' environment cannot yet choose where code is fetched from.
        if key == "allowed_urls" and not _is_true(properties.get(ENABLE_ENVIRONMENT_URLS, "")):
            continue
        yield key, spec, TS_NAMES.get(key, TS_PREFIX + key.upper())


def parse(name: str, spec: Field, text: str) -> Any:
    """Returns the text as a value of this field.

    Raises:
        SettingsError: it is none; the error names `name`, where the text was found.
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
    """As `parse`, for variables and keys that TorchServe does not have.

    To TorchServe whatever is not `true` is false. Here that would leave tokens off where somebody
    has written 1 or yes.

    Raises:
        SettingsError: it is no value of this field.
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
