"""Declares all settings, in one frozen dataclass.

A field's TorchServe name is its own name unless `key` in its metadata says otherwise; its
environment variable is `FERRY_` and either of them in upper case. `loading` reads them.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from batching.models.registration import ModelDefaults
from batching.settings.per_model import model_settings
from batching.settings.sources import SettingsError, UnusableNow
from batching.webhooks import ReceiverRules

__all__ = [
    "DEFAULT_ALLOWED_URLS",
    "DEFAULT_KEY_FILE",
    "ENV_PREFIX",
    "Settings",
    "SettingsError",
    "UnusableNow",
]

ENV_PREFIX = "FERRY_"
# TorchServe allows any address, which let attackers fetch from inside of networks
# (CVE-2023-43654). Its documentation registers these public archives by URL.
DEFAULT_ALLOWED_URLS = r"https://torchserve\.pytorch\.org/.*"

# In the current folder, as in TorchServe.
DEFAULT_KEY_FILE = "key_file.json"

# Prefixes of fields that each start fills in; the URL of Redis may hold a password, too.
_FOUND_AT_START = ("redis_", "snapshot_", "drain_timeout_s", "webhook_secrets")


def _setting(default: Any, *, key: str = "", doc: str) -> Any:
    return field(default=default, metadata={"key": key, "doc": doc})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an ingress, a node or `ferry up`."""

    redis_url: str = _setting(
        "",
        doc="redis://, unix://, redis+sentinel:// or redis+cluster:// URL; `ferry up` has its own",
    )
    redis_ca_file: Path | None = _setting(
        None, doc="PEM file of the authority behind a rediss:// server; default: the system's"
    )
    redis_cert_file: Path | None = _setting(None, doc="PEM file of our certificate for Redis")
    redis_key_file: Path | None = _setting(None, doc="PEM file of that certificate's key")
    redis_append_only: bool = _setting(
        False, doc="turn Redis' append-only file on at the first job, as `ferry up` has its own do"
    )
    inference_address: str = _setting("http://127.0.0.1:8080", doc="predictions listener")
    management_address: str = _setting("http://127.0.0.1:8081", doc="management listener")
    metrics_address: str = _setting("http://127.0.0.1:8082", doc="metrics listener")
    path_aliases: str = _setting(
        "", doc="comma list of /path=/route: further paths of routes, as a platform may choose them"
    )
    trusted_proxies: str = _setting(
        "",
        doc="comma list of addresses and networks, or unix: proxies whose X-Forwarded- headers are "
        "believed in URLs of jobs",
    )
    ingress_processes: int = _setting(
        0,
        doc="processes that share the ports; 0: with `ferry up` one per four cores, 1 to 4; else 1",
    )
    certificate_file: Path | None = _setting(None, doc="PEM file, for addresses with https://")
    private_key_file: Path | None = _setting(None, doc="PEM file of that certificate's key")
    model_store: Path | None = _setting(None, doc="folder of archives")
    work_dir: Path | None = _setting(None, doc="where archives are unpacked; default: a cache")
    unused_files_kept_s: float = _setting(
        86_400.0,
        key="unused_files_kept",
        doc="seconds for which what was unpacked or installed for a model outlives its last use",
    )
    allowed_urls: str = _setting(
        DEFAULT_ALLOWED_URLS, doc="comma list of regular expressions for remote archives"
    )
    load_models: str = _setting("", doc="'all' or a comma list of [name=]archive: loaded at start")
    model_settings: str = _setting(
        "", key="models", doc="JSON of per-model settings: {model: {version: {batchSize: ...}}}"
    )
    default_service_handler: str = _setting("", doc="handler of archives that name none")
    job_queue_size: int = _setting(100, doc="requests that may wait per model version")
    job_backlog: int = _setting(1_000_000, doc="jobs that may wait per model version")
    job_memory_share: float = _setting(
        0.8, doc="part of Redis' maxmemory beyond which jobs are refused; requests are not"
    )
    job_timeout_s: float = _setting(
        86_400.0, key="job_timeout", doc="seconds from a job's submit to its deadline"
    )
    job_result_ttl_s: float = _setting(
        86_400.0, key="job_result_ttl", doc="seconds a finished job and its result are kept"
    )
    default_workers_per_model: int = _setting(0, doc="workers per node of a model at registration")
    default_response_timeout_s: int = _setting(
        120, key="default_response_timeout", doc="seconds a batch may run"
    )
    default_startup_timeout_s: int = _setting(
        120, key="default_startup_timeout", doc="seconds a worker may load"
    )
    queue_timeout_s: float = _setting(
        120.0, key="queue_timeout", doc="seconds a request may wait, on top of response_timeout"
    )
    max_request_size_bytes: int = _setting(
        6_553_500, key="max_request_size", doc="largest request body"
    )
    max_response_size_bytes: int = _setting(
        6_553_500, key="max_response_size", doc="largest answer of a handler"
    )
    max_form_parts: int = _setting(1000, doc="parts, or fields, that a form may have")
    max_header_size_bytes: int = _setting(
        65_536, key="max_header_size", doc="largest request line with all headers"
    )
    idle_timeout_s: float = _setting(
        65.0, key="idle_timeout", doc="seconds a connection may wait for the head of a request"
    )
    body_timeout_s: float = _setting(
        60.0, key="body_timeout", doc="seconds a request's body may take to arrive"
    )
    unread_timeout_s: float = _setting(
        30.0, key="unread_timeout", doc="seconds a client may take in nothing of its answer"
    )
    number_of_gpu: int = _setting(-1, doc="GPUs a node may use; -1: all")
    decode_input_request: bool = _setting(True, doc="decode JSON and text for the handler")
    service_envelope: str = _setting(
        "", doc="body, json, kserve or kservev2: what requests and answers are wrapped in"
    )
    open_inference_rows: bool = _setting(
        False,
        doc="take JSON on /v2/models/NAME/infer apart for handlers, as binary tensors always are",
    )
    max_image_pixels: int = _setting(64_000_000, doc="larger images are refused; 0: no limit")
    acceleration: str = _setting(
        "on", doc="off: the built-in image handlers run models as they came, without what is faster"
    )
    spare_memory_bytes: int = _setting(
        67_108_864,
        key="spare_memory",
        doc="bytes that a worker keeps beyond what its batches need; 0: all that it ever used",
    )
    limit_max_image_pixels: bool = _setting(True, doc="false: images of any size are decoded")
    show_tracebacks: bool = _setting(
        False, doc="tell clients where predictions failed: the last lines of a model's own code"
    )
    blacklist_env_vars: str = _setting(
        "", doc="regular expression of environment variables that workers do not get"
    )
    install_py_dep_per_model: bool = _setting(
        False, doc="install the requirements.txt of archives, in an environment per model"
    )
    metrics_config: Path | None = _setting(
        None, doc="YAML file of the metrics that handlers may emit; default: TorchServe's two"
    )
    model_metrics_auto_detect: bool = _setting(
        False, doc="show metrics of handlers that metrics_config does not list"
    )
    unregister_model_timeout_s: int = _setting(
        120, key="unregister_model_timeout", doc="seconds for a model's workers to go"
    )
    enable_model_api: bool = _setting(True, doc="register and unregister models over HTTP")
    allow_open_management: bool = _setting(
        False, doc="let management listen beyond loopback without tokens"
    )
    token_auth: bool = _setting(
        False,
        key="token_authorization",
        doc="ask for tokens (`ferry models` and others send FERRY_TOKEN); makes key_file if needed",
    )
    key_file: Path | None = _setting(
        None,
        doc="file of the keys; naming it asks for tokens. Default of --token-auth: key_file.json",
    )
    token_expiration_min: float = _setting(60.0, doc="minutes for which a new key is valid")
    disable_token_authorization: bool = _setting(
        False, doc="ask for no tokens, whatever else is set"
    )
    cors_allowed_origin: str = _setting("", doc="origin whose web pages may send requests; *: any")
    cors_allowed_methods: str = _setting("", doc="HTTP methods that those pages may use")
    cors_allowed_headers: str = _setting("", doc="headers that those pages may send")
    enable_metrics_api: bool = _setting(True, doc="serve /metrics")
    metrics_mode: str = _setting(
        "prometheus", doc="prometheus: all in /metrics; legacy: three; log: none, but log lines"
    )
    disable_system_metrics: bool = _setting(False, doc="do not measure CPU, memory, disk and GPUs")
    metric_time_interval_s: int = _setting(
        60, key="metric_time_interval", doc="seconds between two looks at CPU, memory, disk, GPUs"
    )
    page: str = _setting(
        "loopback",
        doc="on, off or loopback: show browsers models, batches and the API document at the "
        "inference address; never with tokens. loopback: if that is this machine's own",
    )
    access_log: bool = _setting(False, doc="log one line per HTTP request")
    log_files: bool = _setting(False, doc="write log files into log_location, too")
    log_location: Path = _setting(Path("logs"), doc="folder of log files and snapshots")
    config_snapshots: bool = _setting(
        True, doc="save what is registered, and restore it when the embedded Redis starts again"
    )
    snapshot_dir: Path | None = _setting(
        None, doc="folder of snapshots; default with an embedded Redis: config in log_location"
    )
    snapshot_file: Path | None = _setting(None, doc="snapshot whose models are registered at start")
    data_dir: Path | None = _setting(
        None, doc="folder of the Redis that `ferry up` brings; default: MODEL_STORE-data/PORT"
    )
    webhook_secrets: str = _setting(
        "", doc="one or two whsec_... that sign webhooks of jobs; without them there are none"
    )
    webhook_allow_http: bool = _setting(False, doc="let receivers of webhooks be http://, too")
    webhook_allowed_hosts: str = _setting(
        "", doc="comma list of receivers' names that may lead into this network"
    )
    webhook_ca_file: Path | None = _setting(
        None, doc="PEM file of the authority behind receivers; default: the system's"
    )
    drain_timeout_s: float = _setting(8.0, key="drain_timeout", doc="seconds for a clean exit")
    drain_delay_s: float = _setting(
        0.0,
        key="drain_delay",
        doc="seconds an ingress goes on accepting after readiness is false; 5 behind a balancer",
    )
    dead_after_s: float = _setting(3.0, key="dead_after", doc="seconds until a silent node is dead")
    probe_dir: Path | None = _setting(
        None, doc="folder where a node keeps the files alive and ready, for probes"
    )
    log_level: str = _setting("info", doc="debug, info, warning or error")

    @classmethod
    def fields(cls) -> dict[str, "dataclasses.Field[Any]"]:
        return {spec.name: spec for spec in dataclasses.fields(cls)}

    @classmethod
    def fields_by_key(cls) -> dict[str, "dataclasses.Field[Any]"]:
        """Returns the fields by their keys in config.properties."""
        return {spec.metadata["key"] or name: spec for name, spec in cls.fields().items()}

    def to_environment(self) -> dict[str, str]:
        """Returns the variables from which a child process loads the same settings."""
        return {
            ENV_PREFIX + name.upper(): "" if value is None else str(value)
            for name, value in ((name, getattr(self, name)) for name in self.fields())
        }

    def absolute(self) -> Self:
        """Returns the same settings with absolute paths, for a process in another folder."""
        values = {name: getattr(self, name) for name in self.fields()}
        paths: dict[str, Any] = {
            name: value.absolute() for name, value in values.items() if isinstance(value, Path)
        }
        return dataclasses.replace(self, **paths)

    def to_properties(self) -> dict[str, str]:
        """Returns the properties that snapshots keep: not those that each start fills in."""
        values = {
            key: getattr(self, spec.name)
            for key, spec in self.fields_by_key().items()
            if not spec.name.startswith(_FOUND_AT_START)
        }
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
            if value not in (None, "")
        }

    @property
    def is_logging_metrics(self) -> bool:
        """Returns whether metrics are log lines, all of them or those that /metrics lacks."""
        return self.metrics_mode != "prometheus"

    def addresses(self) -> dict[str, str]:
        """Returns the addresses of TorchServe's APIs that are served, by their names."""
        addresses = {"inference": self.inference_address, "management": self.management_address}
        return addresses | ({"metrics": self.metrics_address} if self.enable_metrics_api else {})

    def aliases(self) -> dict[str, str]:
        """Returns the paths of `path_aliases`, without a slash at the end, and their routes."""
        pairs = (one.strip().partition("=") for one in self.path_aliases.split(",") if one.strip())
        return {path.rstrip("/"): route for path, _, route in pairs}

    def receiver_rules(self) -> ReceiverRules | None:
        """Returns which receivers of webhooks there may be; None without secrets."""
        if not self.webhook_secrets:
            return None
        return ReceiverRules.of(self.webhook_allow_http, self.webhook_allowed_hosts)

    def keys_path(self) -> Path | None:
        """Returns the path of the key file; None without tokens."""
        if self.disable_token_authorization or not (self.token_auth or self.key_file):
            return None
        return self.key_file or Path(DEFAULT_KEY_FILE)

    def model_defaults(self) -> ModelDefaults:
        return ModelDefaults(
            parameters={
                "min_worker": self.default_workers_per_model,
                "response_timeout_s": self.default_response_timeout_s,
                "startup_timeout_s": self.default_startup_timeout_s,
                "job_queue_size": self.job_queue_size,
                "queue_timeout_s": self.queue_timeout_s,
            },
            handler=self.default_service_handler,
            model_settings=model_settings(self.model_settings),
        )
