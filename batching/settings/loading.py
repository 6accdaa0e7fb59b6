"""Loads settings: defaults < file < environment < flags < TorchServe's variables.

TorchServe's own `TS_*` variables count only if the file says `enable_envvars_config=true`; then
they win over all others.
Source: TorchServe 0.12 docs/configuration.md, "Advanced configuration", and `ConfigManager`.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batching.settings.files import read_properties
from batching.settings.settings import BY_KEY, ENV_PREFIX, SETTINGS, Settings, SettingsError

# Keys of the file that steer how the rest is read.
ENABLE_ENVIRONMENT = "enable_envvars_config"
_ENABLE_ENVIRONMENT_URLS = "use_env_allowed_urls"
SNAPSHOT = "model_snapshot"

# Other spellings of a key; `model_api_enabled` is TorchServe 0.11.1's.
_KEY_ALIASES = {"model_api_enabled": "enable_model_api", "model_control_mode": "enable_model_api"}
_CONTROL_MODES = {"explicit": "true", "none": "false"}

# Our own keys are here as well as TorchServe's.
UNDERSTOOD = frozenset(
    {*BY_KEY, *_KEY_ALIASES, ENABLE_ENVIRONMENT, _ENABLE_ENVIRONMENT_URLS, SNAPSHOT}
)

# TorchServe's keys without a variable `TS_`; settings have `Setting.ts_variable`.
WITHOUT_VARIABLE = frozenset({"io_ratio", SNAPSHOT, "system_metrics_cmd", "use_native_io"})

_NO_GRPC = "there is no gRPC: its clients have to use HTTP, which streams answers, too"
_NO_KEYSTORE = "TLS takes certificate_file and private_key_file"
# TorchServe's key without effect -> why. A key that is unknown costs a warning, never an error.
IGNORED: Mapping[str, str] = {
    key: reason
    for reason, keys in {
        "log lines never wait for a disk": "async_logging",
        "there is no C++ backend": "cpp_log_config",
        "workers share the cores by their number of threads": "cpu_launcher_args "
        "cpu_launcher_enable",
        "a worker is always a child of its node": "debug",
        _NO_GRPC: "enable_grpc_ssl grpc_inference_address grpc_inference_port "
        "grpc_inference_max_connection_age_ms grpc_inference_max_connection_age_grace_ms "
        "grpc_management_address grpc_management_port grpc_management_max_connection_age_ms "
        "grpc_management_max_connection_age_grace_ms",
        "there is no torchrun": "initial_distribution_port",
        "workers have no ports": "initial_worker_port",
        "handlers may import it themselves": "ipex_enable ipex_gpu_enable",
        _NO_KEYSTORE: "keystore keystore_pass keystore_type",
        "there is no Java server to find": "model_server_home",
        "there is no Java virtual machine": "io_ratio netty_client_threads number_of_netty_threads "
        "plugins_path prefer_direct_buffer use_native_io vmargs",
        "a node measures by itself": "system_metrics_cmd",
        "there is no sequence batching": "ts_header_key_sequence_end ts_header_key_sequence_id "
        "ts_header_key_sequence_start",
        "its routes are always there": "ts_open_inference_protocol",
        "there are no workflows": "workflow_store",
    }.items()
    for key in keys.split()
}
# Ignored keys after which an operator or a client has to change something.
REPLACED = frozenset(key for key, reason in IGNORED.items() if reason in (_NO_KEYSTORE, _NO_GRPC))

# TorchServe's key -> how it differs here.
BETTER: Mapping[str, str] = {
    "management_address": "refuses to listen beyond this machine without tokens",
    "load_models": "an ingress that comes back does not load again what was unregistered: "
    "`docs/configuration.md`; `all` leaves out folders without `MAR-INF/MANIFEST.json`, such as "
    "`logs` and `lost+found`, and logs it, unless `default_service_handler` is set; a folder "
    "that is named by its path may be outside of the model store; further nodes need that folder "
    "and this setting, too",
    "model_snapshot": "restored only where nothing is registered yet",
    "default_workers_per_model": "0 means one at startup, not one per core",
    "max_response_size": "only the answer that is too large is refused; the worker keeps running",
    "limit_max_image_pixels": "the limit is a number, `max_image_pixels`, and holds in every "
    "handler; a larger image is refused with 400",
    "service_envelope": "applied to each request by itself, so that batches work",
    "allowed_urls": "default: only TorchServe's model archive",
}

_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # no variable of a child can hold it


def load_settings(
    config_file: Path | None = None,  # TorchServe's keys included
    environment: Mapping[str, str] | None = None,  # instead of this process' own
    flags: Mapping[str, Any] | None = None,  # by field; None means that a flag was not given
    defaults: Mapping[str, Any] | None = None,  # by field
) -> tuple[Settings, list[str]]:
    """Returns the settings from all sources, and the file's keys without effect.

    It raises SettingsError if the file cannot be read, or a value cannot be used.
    """
    environment = os.environ if environment is None else environment
    properties = read_properties(config_file) if config_file is not None else {}
    values = {**(defaults or {}), **_from_file(properties, environment)}
    if SNAPSHOT in properties:
        values["snapshot_file"] = config_file
        # The snapshot's server began with these models; some may have been unregistered since.
        values.pop("load_models", None)
    for it in SETTINGS:
        # The field's own name comes last and wins: parents pass it to children.
        for name in (it.variable, *(f"{ENV_PREFIX}{own.upper()}" for own in (it.key, it.name))):
            if name in environment:
                values[it.name] = it.parse(name, environment[name])
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values |= _from_torchserve_variables(properties, environment)
    if values.get("limit_max_image_pixels") is False:
        values["max_image_pixels"] = 0
    values |= {
        it.name: values[it.name].lower() for it in SETTINGS if it.choices and it.name in values
    }
    settings = Settings(**values)
    settings.check()
    return settings, sorted(properties.keys() - UNDERSTOOD)


def _from_file(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    def variable(match: re.Match[str]) -> str:
        # Source: TorchServe 0.12 ConfigManager.resolveEnvVarVals.
        if match[1] not in environment:
            raise SettingsError(f"{match[0]} in the configuration: {match[1]} is not set")
        return environment[match[1]]

    values: dict[str, Any] = {}
    for key, text in properties.items():
        if (it := BY_KEY.get(_KEY_ALIASES.get(key, key))) is None:
            continue
        if _NO_TEXT.search(text):
            raise SettingsError(f"{key} has a character that is no text")
        value = _VARIABLE.sub(variable, text)
        if key == "model_control_mode":
            if (mode := value.strip().lower()) not in _CONTROL_MODES:
                raise SettingsError(f"{key}={value!r} is not one of: {', '.join(_CONTROL_MODES)}")
            value = _CONTROL_MODES[mode]
        values[it.name] = it.parse(key, value, as_torchserve=True)
    return values


def _from_torchserve_variables(
    properties: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    is_on, has_urls = (
        properties.get(key, "").strip().lower() == "true"
        for key in (ENABLE_ENVIRONMENT, _ENABLE_ENVIRONMENT_URLS)
    )
    # Who sets variables may not yet choose where code is fetched from.
    return {
        it.name: it.parse(it.ts_variable, environment[it.ts_variable], as_torchserve=True)
        for it in SETTINGS
        if is_on and it.ts_variable in environment and (it.name != "allowed_urls" or has_urls)
    }


def why_without_effect(key: str) -> str:
    """Explains a key of a configuration file that is not `UNDERSTOOD`."""
    if key in IGNORED:
        return f"{key} has no effect here: {IGNORED[key]}"
    alike = difflib.get_close_matches(key, UNDERSTOOD, n=1, cutoff=0.8)
    return f"{key} is unknown" + "".join(f"; did you mean {known}?" for known in alike)
