"""Declares all settings, in one frozen dataclass; `loading` reads them.

To add one, add a field, and use it: all else follows from the field (ADR 0020).
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from batching.models.registration import ModelDefaults
from batching.models.spec import MAX_INTEGER, unit_of
from batching.settings.redis_url import RedisUrl
from batching.settings.values import (
    TrustedProxies,
    check_header,
    check_patterns,
    model_settings,
    path_aliases,
)
from batching.webhooks import ReceiverRules, read_secrets

ENV_PREFIX = "FERRY_"
# TorchServe allows any address, so that attackers could fetch from inside of networks
# (CVE-2023-43654). Its documentation registers these public archives by URL.
DEFAULT_ALLOWED_URLS = r"https://torchserve\.pytorch\.org/.*"

# In the current folder, as in TorchServe.
DEFAULT_KEY_FILE = "key_file.json"


class SettingsError(ValueError):
    """A setting cannot be used; the message names it and says what would work."""


class UnusableNow(SettingsError):
    """A setting cannot be used now, but may be a moment later."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes one field of `Settings`."""

    name: str  # the field; ends in the unit of a number
    kind: type  # bool, int, float, str or Path
    is_optional: bool  # an empty text means None
    default: Any
    doc: str  # half a sentence for people
    key: str  # its name in config.properties: TorchServe's, if it has the setting
    is_torchserves: bool = False
    ts_variable: str = ""  # TorchServe's variable `TS_...`
    variable: str = ""  # another program's variable that sets it, too
    flag: str = ""  # a further spelling on command lines
    section: str = ""  # of the help; also of the next settings, until another is named
    is_common: bool = False  # most starts name it, so the help begins with it
    is_saved: bool = True  # snapshots keep it; not a password, nor what each start fills in
    lowest: float = 0
    choices: tuple[str, ...] = ()  # in any case; empty: any text
    check: Callable[[Any], object] | None = None  # raises ValueError or re.error

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    def parse(self, source: str, text: str, *, as_torchserve: bool = False) -> Any:
        """Returns the text as a value; a SettingsError at the wrong type names the source.

        `as_torchserve` reads every text but `true` as false. For our own settings that would leave
        tokens off when an operator writes 1 or yes, so these are always read strictly.
        """
        if self.is_optional and text == "":
            return None
        if self.kind is bool:
            switch = text.strip().lower()
            is_strict = not (as_torchserve and self.is_torchserves)
            if is_strict and switch not in ("true", "false", ""):
                raise SettingsError(f"{source}={text!r} is neither true nor false: {self.doc}")
            return switch == "true"
        try:
            return self.kind(text.strip())
        except ValueError as error:
            kind = "whole number" if self.kind is int else "number"
            raise SettingsError(f"{source}={text!r} is not a {kind}: {self.doc}") from error

    def check_value(self, value: Any) -> None:
        """Raises SettingsError if the setting cannot have this value."""
        if self.choices and value not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise SettingsError(f"{self.key}={value!r} is not one of: {known}")
        # NaN is out of range, too.
        if self.kind in (int, float) and not self.lowest <= value <= MAX_INTEGER:
            bounds = f"from {self.lowest} to {MAX_INTEGER}"
            raise SettingsError(f"{self.key} must be {bounds}, not {value}: {self.doc}")
        if self.check is not None and value:
            try:
                self.check(value)
            except (ValueError, re.error) as error:
                raise SettingsError(f"{self.key}: {error} ({self.doc})") from error


def setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a setting of our own; its key is its name without unit, unless `facts` has one."""
    return field(default=default, metadata={"doc": doc, **facts})


def torchserve_setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a setting of TorchServe's; as a switch, it is read as TorchServe reads it."""
    return setting(default, doc, is_torchserves=True, **facts)


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds the settings of an ingress, a node or `ferry up`.

    The name of a number ends in its unit; the help has the same sections and order.
    """

    redis_url: str = setting(
        "",
        "redis://, unix://, redis+sentinel:// or redis+cluster:// URL; without one, `ferry up` "
        "starts a Redis of its own",
        variable="REDIS_URL",
        is_common=True,
        is_saved=False,
        check=RedisUrl.parse,
    )
    redis_ca_file: Path | None = setting(
        None,
        "PEM file of the authority behind a rediss:// server; default: the system's",
        section="Redis",
        is_saved=False,
    )
    redis_cert_file: Path | None = setting(
        None, "PEM file of our certificate for Redis", is_saved=False
    )
    redis_key_file: Path | None = setting(None, "PEM file of its key", is_saved=False)
    redis_append_only: bool = setting(
        False,
        "turn on Redis' append-only file at the first job, as `ferry up` does with its own Redis",
        is_saved=False,
    )
    inference_address: str = torchserve_setting(
        "http://127.0.0.1:8080", "address for predictions", section="Addresses and TLS"
    )
    management_address: str = torchserve_setting("http://127.0.0.1:8081", "address for management")
    metrics_address: str = torchserve_setting("http://127.0.0.1:8082", "address for metrics")
    path_aliases: str = setting(
        "",
        "comma list of /path=/route: more paths for routes, as a platform may need them",
        check=path_aliases,
    )
    trusted_proxies: str = setting(
        "",
        "comma list of addresses and networks, or unix: proxies whose X-Forwarded- headers are "
        "believed in URLs of jobs",
        check=TrustedProxies.of,
    )
    ingress_processes: int = setting(
        0, "processes that share the ports; 0: with `ferry up` one per four cores, 1 to 4; else 1"
    )
    certificate_file: Path | None = torchserve_setting(None, "PEM file, for https:// addresses")
    private_key_file: Path | None = torchserve_setting(None, "PEM file of that certificate's key")
    model_store: Path | None = torchserve_setting(None, "folder of archives", is_common=True)
    work_dir: Path | None = setting(
        None, "where archives are unpacked; default: a cache", section="Archives and models"
    )
    unused_files_kept_s: float = setting(
        86_400.0,
        "seconds for which what was unpacked or installed for a model outlives its last use",
        lowest=60,
    )
    allowed_urls: str = torchserve_setting(
        DEFAULT_ALLOWED_URLS,
        "comma list of regular expressions for remote archives",
        check=check_patterns,
    )
    load_models: str = torchserve_setting(
        "",
        "'all' or a comma list of [name=]archive: loaded at start",
        flag="--models",
        is_common=True,
    )
    model_settings: str = torchserve_setting(
        "",
        "JSON of per-model settings: {model: {version: {batchSize: ...}}}",
        key="models",
        ts_variable="",
        check=model_settings,
    )
    default_service_handler: str = torchserve_setting("", "handler of archives that name none")
    job_queue_size: int = torchserve_setting(
        100, "requests that may wait per model version", section="Queues and jobs", lowest=1
    )
    job_backlog: int = setting(1_000_000, "jobs that may wait per model version")
    job_memory_share: float = setting(
        0.8, "part of Redis' maxmemory beyond which jobs are refused; requests are not"
    )
    job_timeout_s: float = setting(86_400.0, "seconds from a job's submit to its deadline")
    job_result_ttl_s: float = setting(86_400.0, "seconds a finished job and its result are kept")
    default_workers_per_model: int = torchserve_setting(
        0, "workers that a new model gets on each node", section="Workers and timeouts"
    )
    default_response_timeout_s: int = torchserve_setting(120, "seconds a batch may run", lowest=1)
    default_startup_timeout_s: int = torchserve_setting(120, "seconds a worker may load", lowest=1)
    queue_timeout_s: float = setting(
        120.0, "seconds a request may wait, on top of response_timeout", lowest=0.001
    )
    max_request_size_bytes: int = torchserve_setting(
        6_553_500, "largest request body", section="Requests and answers", lowest=1
    )
    max_response_size_bytes: int = torchserve_setting(
        6_553_500, "a handler's largest answer", lowest=1
    )
    max_form_parts: int = setting(1000, "parts or fields that a form may have", lowest=1)
    max_header_size_bytes: int = setting(65_536, "largest request line and headers", lowest=1024)
    idle_timeout_s: float = setting(65.0, "seconds a connection may wait for a request", lowest=1)
    body_timeout_s: float = setting(60.0, "seconds a request's body may take to arrive", lowest=1)
    unread_timeout_s: float = setting(
        30.0, "seconds for which a client may read nothing of its answer", lowest=1
    )
    number_of_gpu: int = torchserve_setting(
        -1, "GPUs a node may use; -1: all", section="Devices and handlers", lowest=-1
    )
    decode_input_request: bool = torchserve_setting(True, "decode JSON and text for the handler")
    service_envelope: str = torchserve_setting(
        "",
        "body, json, kserve or kservev2: what requests and answers are wrapped in",
        choices=("", "body", "json", "kserve", "kservev2"),
    )
    open_inference_rows: bool = setting(
        False, "take JSON on /v2/models/NAME/infer apart for handlers, as binary tensors always are"
    )
    shared_memory_dir: Path = setting(
        Path("/dev/shm"),  # noqa: S108
        "folder in memory, through which ingresses pass large bodies to workers of the same host",
        is_saved=False,
    )
    shared_memory_bytes: int = setting(
        134_217_728, "bytes of it for each ingress process and worker; 0: Redis carries all bodies"
    )
    max_image_pixels: int = setting(64_000_000, "larger images are refused; 0: no limit")
    acceleration: str = setting(
        "on", "off: the built-in image handlers do not make models faster", choices=("on", "off")
    )
    spare_memory_bytes: int = setting(
        67_108_864,
        "bytes that a worker keeps beyond what its batches need; 0: all that it ever used",
    )
    limit_max_image_pixels: bool = torchserve_setting(True, "false: images of any size are decoded")
    show_tracebacks: bool = setting(
        False, "tell clients where predictions failed: the last lines of a model's own code"
    )
    blacklist_env_vars: str = torchserve_setting(
        "", "regular expression of environment variables that workers do not get", check=re.compile
    )
    install_py_dep_per_model: bool = torchserve_setting(
        False, "install the requirements.txt of archives, in an environment per model"
    )
    metrics_config: Path | None = torchserve_setting(
        None, "YAML file of the metrics that handlers may emit; default: TorchServe's two"
    )
    model_metrics_auto_detect: bool = torchserve_setting(
        False, "show metrics of handlers that metrics_config does not list"
    )
    unregister_model_timeout_s: int = torchserve_setting(
        120, "seconds for a model's workers to end", section="Management and tokens", lowest=1
    )
    enable_model_api: bool = torchserve_setting(True, "register and unregister models over HTTP")
    allow_open_management: bool = setting(False, "let management listen anywhere without tokens")
    token_auth: bool = setting(
        False,
        "ask for tokens (`ferry models` and others send FERRY_TOKEN); makes key_file if needed",
        key="token_authorization",
        is_common=True,
    )
    key_file: Path | None = setting(
        None, "file of the keys; naming it asks for tokens. Default of --token-auth: key_file.json"
    )
    token_expiration_min: float = torchserve_setting(
        60.0,
        "minutes for which a new key is valid",
        ts_variable="TS_TOKEN_EXPIRATION_TIME_MIN",
        lowest=0.01,
    )
    disable_token_authorization: bool = torchserve_setting(
        False, "ask for no tokens, whatever else is set", flag="--disable-token-auth"
    )
    cors_allowed_origin: str = torchserve_setting(
        "",
        "origin whose web pages may send requests; *: any",
        section="Web pages of other origins",
        check=check_header,
    )
    cors_allowed_methods: str = torchserve_setting(
        "", "HTTP methods that they may use", check=check_header
    )
    cors_allowed_headers: str = torchserve_setting(
        "", "headers that they may send", check=check_header
    )
    enable_metrics_api: bool = torchserve_setting(
        True, "serve /metrics", section="Metrics and logs"
    )
    metrics_mode: str = torchserve_setting(
        "prometheus",
        "prometheus: all metrics in /metrics; legacy: three of them; log: only in the log",
        choices=("log", "prometheus", "legacy"),
    )
    disable_system_metrics: bool = torchserve_setting(
        False, "do not measure CPU, memory, disk and GPUs"
    )
    metric_time_interval_s: int = torchserve_setting(
        60, "seconds between measurements of CPU, memory, disk, GPUs", ts_variable="", lowest=1
    )
    page: str = setting(
        "loopback",
        "on, off or loopback: show browsers models, batches and the API document at the inference "
        "address; never with tokens. loopback: if that is this machine's own",
        choices=("loopback", "on", "off"),
    )
    access_log: bool = setting(False, "log one line per HTTP request")
    log_files: bool = setting(False, "write log files into log_location, too")
    log_location: Path = setting(
        Path("logs"), "folder of log files and snapshots", variable="LOG_LOCATION"
    )
    config_snapshots: bool = setting(
        True,
        "save what is registered, and restore it when the embedded Redis starts again",
        section="What outlives a restart",
    )
    snapshot_dir: Path | None = setting(
        None,
        "folder of snapshots; default with an embedded Redis: config in log_location",
        is_saved=False,
    )
    snapshot_file: Path | None = setting(None, "snapshot to restore at start", is_saved=False)
    data_dir: Path | None = setting(
        None, "folder of the Redis that `ferry up` brings; default: MODEL_STORE-data/PORT"
    )
    webhook_secrets: str = setting(
        "",
        "one or two whsec_... that sign webhooks of jobs; without them there are none",
        section="Webhooks",
        is_saved=False,
        check=read_secrets,
    )
    webhook_allow_http: bool = setting(False, "let receivers of webhooks be http://, too")
    webhook_allowed_hosts: str = setting("", "comma list of receivers that may be in this network")
    webhook_ca_file: Path | None = setting(
        None, "PEM file of the authority behind receivers; default: the system's"
    )
    drain_timeout_s: float = setting(
        8.0, "seconds that a stop may take", section="Stopping and probes", is_saved=False
    )
    drain_delay_s: float = setting(
        0.0, "seconds an ingress goes on accepting after readiness is false; 5 behind a balancer"
    )
    dead_after_s: float = setting(3.0, "seconds after which a silent node counts as dead", lowest=2)
    probe_dir: Path | None = setting(None, "folder of a node's files alive and ready, for probes")
    log_level: str = setting(
        "info",
        "lowest level that is logged",
        section="Metrics and logs",
        choices=("debug", "info", "warning", "error", "critical"),
    )

    def to_environment(self) -> dict[str, str]:
        """Returns the variables from which a child process loads the same settings."""
        return {
            ENV_PREFIX + name.upper(): "" if value is None else str(value)
            for name, value in self._values().items()
        }

    def absolute(self) -> Self:
        values = self._values()
        paths: dict[str, Any] = {
            name: it.absolute() for name, it in values.items() if isinstance(it, Path)
        }
        return dataclasses.replace(self, **paths)

    def to_properties(self) -> dict[str, str]:
        """Returns the properties that snapshots keep."""
        values = {it.key: getattr(self, it.name) for it in SETTINGS if it.is_saved}
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
            if value not in (None, "")
        }

    def _values(self) -> dict[str, Any]:
        return {it.name: getattr(self, it.name) for it in SETTINGS}

    def check(self) -> None:
        """Raises SettingsError if a setting cannot be used, or two do not fit together."""
        for it in SETTINGS:
            it.check_value(getattr(self, it.name))
        if self.service_envelope and self.open_inference_rows:
            raise SettingsError("open_inference_rows is for handlers without a service_envelope")
        if self.ingress_processes > 1 and self.inference_address.startswith("unix:"):
            raise SettingsError(
                "ingress_processes: a unix socket has one listener; give inference_address a port"
            )
        has_tls_files = any((self.redis_ca_file, self.redis_cert_file, self.redis_key_file))
        if has_tls_files and self.redis_url and not RedisUrl.parse(self.redis_url).is_tls:
            raise SettingsError(
                "redis_ca_file and the like need TLS: a redis_url with rediss://, "
                "rediss+sentinel:// or rediss+cluster://"
            )
        if self.redis_key_file and not self.redis_cert_file:
            raise SettingsError("redis_key_file needs redis_cert_file, the certificate of that key")

    @property
    def is_logging_metrics(self) -> bool:
        """Returns whether metrics are log lines: all of them, or what /metrics lacks."""
        return self.metrics_mode != "prometheus"

    def addresses(self) -> dict[str, str]:
        addresses = {"inference": self.inference_address, "management": self.management_address}
        return addresses | ({"metrics": self.metrics_address} if self.enable_metrics_api else {})

    def aliases(self) -> dict[str, str]:
        return path_aliases(self.path_aliases)

    def receiver_rules(self) -> ReceiverRules | None:
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


def _all_settings() -> tuple[Setting, ...]:
    settings = []
    section = ""
    for declared in dataclasses.fields(Settings):
        kind: Any = declared.type
        if is_optional := isinstance(kind, types.UnionType):
            kind = next(it for it in typing.get_args(kind) if it is not type(None))
        name = declared.name
        key = declared.metadata.get("key", name.rpartition("_")[0] if unit_of(name) else name)
        facts = {"key": key, "ts_variable": f"TS_{key.upper()}", "section": section}
        facts |= declared.metadata
        section = facts["section"]
        settings.append(Setting(name, kind, is_optional, declared.default, **facts))
    return tuple(settings)


SETTINGS = _all_settings()
BY_KEY = {it.key: it for it in SETTINGS}
