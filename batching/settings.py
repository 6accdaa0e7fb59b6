"""Settings: one frozen dataclass; defaults < config.properties < environment < flags.

A field's TorchServe name is its own name unless `key` in its metadata says otherwise; its
environment variable is `FERRY_` and the upper-cased field name.
"""

import dataclasses
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import javaproperties

from batching.model_spec import ModelDefaults

ENV_PREFIX = "FERRY_"
_VARIABLE = re.compile(r"\$\$(\w+)\$\$")
# TorchServe allows any address, which is how others got it to fetch from inside of networks
# (CVE-2023-43654). Its public archives are what its documentation registers by URL.
DEFAULT_ALLOWED_URLS = r"https://torchserve\.pytorch\.org/.*"

# In the folder that the server was started in, as TorchServe's.
DEFAULT_KEY_FILE = "key_file.json"


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what would do."""


def _setting(default: Any, *, key: str = "", doc: str) -> Any:
    return field(default=default, metadata={"key": key, "doc": doc})


@dataclass(frozen=True, slots=True)
class Settings:
    """What an ingress, a node or `ferry up` is told before it starts."""

    redis_url: str = _setting("", doc="redis://, rediss:// or unix:// URL; empty: embedded")
    redis_ca_file: Path | None = _setting(
        None, doc="PEM file of the authority behind a rediss:// server; default: the system's"
    )
    redis_cert_file: Path | None = _setting(None, doc="PEM file of our certificate for Redis")
    redis_key_file: Path | None = _setting(None, doc="PEM file of that certificate's key")
    inference_address: str = _setting("http://127.0.0.1:8080", doc="predictions listener")
    management_address: str = _setting("http://127.0.0.1:8081", doc="management listener")
    metrics_address: str = _setting("http://127.0.0.1:8082", doc="metrics listener")
    model_store: Path | None = _setting(None, doc="folder of archives")
    work_dir: Path | None = _setting(None, doc="where archives are unpacked; default: a cache")
    allowed_urls: str = _setting(
        DEFAULT_ALLOWED_URLS, doc="comma list of regular expressions for remote archives"
    )
    load_models: str = _setting("", doc="'all' or a comma list of [name=]archive")
    job_queue_size: int = _setting(100, doc="requests that may wait per model version")
    default_workers_per_model: int = _setting(0, doc="workers per node of a model at registration")
    default_response_timeout_s: int = _setting(
        120, key="default_response_timeout", doc="seconds a batch may run"
    )
    default_startup_timeout_s: int = _setting(
        120, key="default_startup_timeout", doc="seconds a worker may load"
    )
    queue_timeout_s: float = _setting(
        120.0, key="queue_timeout", doc="seconds a request may wait for a worker"
    )
    max_request_size_bytes: int = _setting(
        6_553_500, key="max_request_size", doc="largest request body"
    )
    max_response_size_bytes: int = _setting(
        6_553_500, key="max_response_size", doc="largest answer of a handler"
    )
    number_of_gpu: int = _setting(-1, doc="GPUs a node may use; -1: all")
    decode_input_request: bool = _setting(True, doc="decode JSON and text for the handler")
    max_image_pixels: int = _setting(25_000_000, doc="larger images are refused; 0: no limit")
    unregister_model_timeout_s: int = _setting(
        120, key="unregister_model_timeout", doc="seconds for a model's workers to go"
    )
    allow_open_management: bool = _setting(
        False, doc="let management listen beyond loopback without tokens"
    )
    token_auth: bool = _setting(
        False, key="token_authorization", doc="ask for tokens; makes key_file if it is not there"
    )
    key_file: Path | None = _setting(
        None, doc="the keys; naming one asks for tokens. Default of --token-auth: key_file.json"
    )
    token_expiration_min: int = _setting(60, doc="minutes for which a new key opens anything")
    disable_token_authorization: bool = _setting(
        False, doc="ask for no tokens, whatever else is set"
    )
    drain_timeout_s: float = _setting(8.0, key="drain_timeout", doc="seconds for a clean exit")
    drain_delay_s: float = _setting(
        0.0,
        key="drain_delay",
        doc="seconds an ingress goes on accepting after readiness is false; 5 behind a balancer",
    )
    dead_after_s: float = _setting(3.0, key="dead_after", doc="silence after which a node is dead")
    log_level: str = _setting("info", doc="debug, info, warning or error")

    @classmethod
    def load(
        cls,
        config_file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> tuple[Self, list[str]]:
        """The settings from all sources, and the config keys that nobody knows.

        Raises:
            SettingsError: an unreadable file, a value of the wrong type or one that cannot work.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        unknown: list[str] = []
        if config_file is not None:
            values, unknown = cls._from_properties(config_file, environment)
        # Before FERRY_REDIS_URL, which is more specific, and over the file, as every variable.
        if "REDIS_URL" in environment:
            values["redis_url"] = environment["REDIS_URL"]
        for name, spec in cls._fields().items():
            if (text := environment.get(ENV_PREFIX + name.upper())) is not None:
                values[name] = _parse(name, spec, text)
        for name, value in (flags or {}).items():
            if value is not None:
                values[name] = value
        settings = cls(**values)
        settings.check()
        return settings, unknown

    def check(self) -> None:
        """Nothing happens to settings that fit together.

        Raises:
            SettingsError: they do not; better now than at the first request.
        """
        for pattern in self.allowed_urls.split(","):
            try:
                re.compile(pattern.strip())
            except re.error as error:
                raise SettingsError(
                    f"allowed_urls: {pattern.strip()!r} is not a regular expression ({error}); "
                    "commas separate expressions"
                ) from error
        tls_files = (self.redis_ca_file, self.redis_cert_file, self.redis_key_file)
        if any(tls_files) and self.redis_url and not self.redis_url.startswith("rediss:"):
            raise SettingsError("redis_ca_file and the like need a redis_url with rediss://")

    @classmethod
    def _from_properties(
        cls, path: Path, environment: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        try:
            with path.open(encoding="utf-8") as stream:
                properties = javaproperties.load(stream)
        except (OSError, ValueError) as error:
            raise SettingsError(f"cannot read {path}: {error}") from error
        by_key = {spec.metadata["key"] or name: spec for name, spec in cls._fields().items()}
        values = {
            by_key[key].name: _parse(key, by_key[key], _substitute(text, environment))
            for key, text in properties.items()
            if key in by_key
        }
        return values, sorted(set(properties) - set(by_key))

    @classmethod
    def _fields(cls) -> dict[str, "dataclasses.Field[Any]"]:
        return {spec.name: spec for spec in dataclasses.fields(cls)}

    def to_environment(self) -> dict[str, str]:
        """Environment variables from which `load` makes the same settings in a child process."""
        return {
            ENV_PREFIX + name.upper(): "" if value is None else str(value)
            for name, value in ((name, getattr(self, name)) for name in self._fields())
        }

    def keys_path(self) -> Path | None:
        """Where the keys are; None when no tokens are asked for."""
        if self.disable_token_authorization or not (self.token_auth or self.key_file):
            return None
        return self.key_file or Path(DEFAULT_KEY_FILE)

    def model_defaults(self) -> ModelDefaults:
        """The part of the settings that registrations fall back to."""
        return ModelDefaults(
            default_workers_per_model=self.default_workers_per_model,
            default_response_timeout_s=self.default_response_timeout_s,
            default_startup_timeout_s=self.default_startup_timeout_s,
            job_queue_size=self.job_queue_size,
            queue_timeout_s=self.queue_timeout_s,
        )


def _substitute(text: str, environment: Mapping[str, str]) -> str:
    """The text with each `$$NAME$$` replaced by the variable NAME.

    Source: torchserve 0.12 ConfigManager.resolveEnvVarVals.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise SettingsError(f"{match[0]} in the configuration: {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(value, text)


def _parse(name: str, spec: "dataclasses.Field[Any]", text: str) -> Any:
    kind: Any = spec.type
    if isinstance(kind, types.UnionType):
        if text == "":
            return None
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if kind is bool:
        return text.strip().lower() == "true"
    try:
        return kind(text.strip())
    except ValueError as error:
        raise SettingsError(
            f"{name}={text!r} is not a {kind.__name__}: {spec.metadata['doc']}"
        ) from error
