"""Lists TorchServe 0.12's configuration keys: understood, or without effect and why.

A key in neither list is unknown; it costs a warning, never an error.
Source: TorchServe 0.12 docs/configuration.md and `ConfigManager`.
"""

import difflib
from collections.abc import Mapping

from batching.settings.settings import BY_KEY

# Keys of the file that steer how the rest is read.
ENABLE_ENVIRONMENT = "enable_envvars_config"
ENABLE_ENVIRONMENT_URLS = "use_env_allowed_urls"
SNAPSHOT = "model_snapshot"

# Other spellings of a key; `model_api_enabled` is TorchServe 0.11.1's.
KEY_ALIASES = {"model_api_enabled": "enable_model_api", "model_control_mode": "enable_model_api"}
CONTROL_MODES = {"explicit": "true", "none": "false"}

# Our own keys are here as well as TorchServe's.
UNDERSTOOD = frozenset(
    {*BY_KEY, *KEY_ALIASES, ENABLE_ENVIRONMENT, ENABLE_ENVIRONMENT_URLS, SNAPSHOT}
)

# TorchServe's keys without a variable `TS_`; settings have `Setting.ts_variable`.
WITHOUT_VARIABLE = frozenset({"io_ratio", SNAPSHOT, "system_metrics_cmd", "use_native_io"})

_NO_JVM = "there is no Java virtual machine"
_NO_GRPC = "there is no gRPC: its clients have to use HTTP, which streams answers, too"
_NO_KEYSTORE = "TLS takes certificate_file and private_key_file"
_NO_SEQUENCES = "there is no sequence batching"

IGNORED: Mapping[str, str] = {
    "async_logging": "log lines never wait for a disk",
    "cpp_log_config": "there is no C++ backend",
    "cpu_launcher_args": "workers share the cores by their number of threads",
    "cpu_launcher_enable": "workers share the cores by their number of threads",
    "debug": "a worker is always a child of its node",
    "enable_grpc_ssl": _NO_GRPC,
    "grpc_inference_address": _NO_GRPC,
    "grpc_inference_max_connection_age_grace_ms": _NO_GRPC,
    "grpc_inference_max_connection_age_ms": _NO_GRPC,
    "grpc_inference_port": _NO_GRPC,
    "grpc_management_address": _NO_GRPC,
    "grpc_management_max_connection_age_grace_ms": _NO_GRPC,
    "grpc_management_max_connection_age_ms": _NO_GRPC,
    "grpc_management_port": _NO_GRPC,
    "initial_distribution_port": "there is no torchrun",
    "initial_worker_port": "workers have no ports",
    "io_ratio": _NO_JVM,
    "ipex_enable": "handlers may import it themselves",
    "ipex_gpu_enable": "handlers may import it themselves",
    "keystore": _NO_KEYSTORE,
    "keystore_pass": _NO_KEYSTORE,
    "keystore_type": _NO_KEYSTORE,
    "model_server_home": "there is no Java server to find",
    "netty_client_threads": _NO_JVM,
    "number_of_netty_threads": _NO_JVM,
    "plugins_path": _NO_JVM,
    "prefer_direct_buffer": _NO_JVM,
    "system_metrics_cmd": "a node measures by itself",
    "ts_header_key_sequence_end": _NO_SEQUENCES,
    "ts_header_key_sequence_id": _NO_SEQUENCES,
    "ts_header_key_sequence_start": _NO_SEQUENCES,
    "use_native_io": _NO_JVM,
    "ts_open_inference_protocol": "its routes are always there",
    "vmargs": _NO_JVM,
    "workflow_store": "there are no workflows",
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


def why_without_effect(key: str) -> str:
    """Explains a key of a configuration file that is not `UNDERSTOOD`."""
    if key in IGNORED:
        return f"{key} has no effect here: {IGNORED[key]}"
    alike = difflib.get_close_matches(key, UNDERSTOOD, n=1, cutoff=0.8)
    return f"{key} is unknown" + "".join(f"; did you mean {known}?" for known in alike)
