"""Refuses settings that cannot work at start, not at the first request."""

import dataclasses
import difflib
import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from batching.models.config_keys import SERVER_TYPES, ignored_values
from batching.models.parameters import MAX_INTEGER
from batching.settings.per_model import ModelSettings, model_settings
from batching.settings.redis_url import RedisUrl, RedisUrlError
from batching.settings.settings import Settings
from batching.settings.sources import SettingsError
from batching.settings.trusted_proxies import TrustedProxies
from batching.webhooks import read_secrets

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "metrics_mode": ("log", "prometheus", "legacy"),
    "service_envelope": ("", "body", "json", "kserve", "kservev2"),
    "acceleration": ("on", "off"),
    "page": ("loopback", "on", "off"),
}
# The lowest numbers with which anything works; all others may be 0.
_LOWEST: Mapping[str, float] = {
    "body_timeout_s": 1,
    "dead_after_s": 2,  # nodes beat every 0.9 s (workers/node/heartbeat.py)
    "default_response_timeout_s": 1,
    "default_startup_timeout_s": 1,
    "idle_timeout_s": 1,
    "job_queue_size": 1,  # every request waits, if briefly
    "max_form_parts": 1,
    "max_header_size_bytes": 1024,
    "max_request_size_bytes": 1,
    "max_response_size_bytes": 1,
    "metric_time_interval_s": 1,
    "number_of_gpu": -1,
    "queue_timeout_s": 0.001,
    "token_expiration_min": 0.01,
    "unread_timeout_s": 1,
    "unregister_model_timeout_s": 1,
    "unused_files_kept_s": 60,  # a node's sweeper marks what it needs 24 times in between
}

CORS = ("cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers")
# The settings of one version in `models`.
_WORDS = frozenset({*SERVER_TYPES, "defaultVersion", "marName"})


def check_settings(settings: Settings) -> None:
    """Checks that the settings fit together.

    Raises:
        SettingsError: they do not.
    """
    for pattern in settings.allowed_urls.split(","):
        _check_pattern("allowed_urls", pattern.strip(), "; commas separate expressions")
    _check_pattern("blacklist_env_vars", settings.blacklist_env_vars)
    _check_words(settings)
    _check_addresses(settings)
    _check_aliases(settings)
    _check_proxies(settings)
    _check_webhooks(settings)
    _check_cors(settings)
    _check_numbers(settings)
    if settings.redis_url:
        _check_redis(settings)
    model_settings(settings.model_settings)


def _check_words(settings: Settings) -> None:
    for name, choices in _CHOICES.items():
        if (value := getattr(settings, name)) not in choices:
            known = ", ".join(filter(None, choices))
            raise SettingsError(f"{name}={value!r} is none of: {known}")
    if settings.service_envelope and settings.open_inference_rows:
        raise SettingsError("open_inference_rows is for handlers without a service_envelope")
    if settings.log_level.upper() not in logging.getLevelNamesMapping():
        raise SettingsError(
            f"log_level={settings.log_level!r} is none of: debug, info, warning, error"
        )


def _check_addresses(settings: Settings) -> None:
    if settings.ingress_processes > 1 and settings.inference_address.startswith("unix:"):
        raise SettingsError(
            "ingress_processes: a unix socket has one listener; give inference_address a port"
        )


def _check_aliases(settings: Settings) -> None:
    for path, route in settings.aliases().items():
        if not (f"{path}/".startswith("/") and route.startswith("/")):
            raise SettingsError(f"path_aliases: write /path=/route, not {path}={route}")


def _check_proxies(settings: Settings) -> None:
    try:
        TrustedProxies.of(settings.trusted_proxies)
    except ValueError as error:
        words = "write addresses, networks such as 10.0.0.0/8, or unix"
        raise SettingsError(f"trusted_proxies: {error}; {words}") from error


def _check_webhooks(settings: Settings) -> None:
    try:
        read_secrets(settings.webhook_secrets)
    except ValueError as error:
        raise SettingsError(f"webhook_secrets: {error}") from error


def _check_cors(settings: Settings) -> None:
    # Every answer carries them as headers.
    for key in CORS:
        value = getattr(settings, key)
        if not (value.isascii() and value.isprintable()):
            raise SettingsError(f"{key}={value!r} has characters that no header may have")


def _check_numbers(settings: Settings) -> None:
    for spec in dataclasses.fields(settings):
        value, low = getattr(settings, spec.name), _LOWEST.get(spec.name, 0)
        high = MAX_INTEGER
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not low <= value <= high:  # NaN is outside, too
            key, doc = spec.metadata["key"] or spec.name, spec.metadata["doc"]
            raise SettingsError(f"{key} must be from {low} to {high}, not {value}: {doc}")


def _check_redis(settings: Settings) -> None:
    try:
        url = RedisUrl.parse(settings.redis_url)
    except RedisUrlError as error:
        raise SettingsError(f"redis_url: {error}") from error
    tls_files = (settings.redis_ca_file, settings.redis_cert_file, settings.redis_key_file)
    if any(tls_files) and not url.is_tls:
        raise SettingsError(
            "redis_ca_file and the like need TLS: a redis_url with rediss://, rediss+sentinel:// "
            "or rediss+cluster://"
        )
    if settings.redis_key_file and not settings.redis_cert_file:
        raise SettingsError("redis_key_file needs redis_cert_file, the certificate of that key")


def doubts(settings: Settings) -> list[str]:
    """Returns a warning for each setting that works, but is probably a mistake."""
    return [
        *_doubts_of_addresses(settings),
        *_doubts_of_cors(settings),
        *_doubts_of_models(model_settings(settings.model_settings)),
    ]


def _doubts_of_addresses(settings: Settings) -> Iterator[str]:
    for name, address in settings.addresses().items():
        path = address.partition("://")[2].partition("/")[2]
        if path:
            yield f"{name}_address: the path /{path} has no effect"


def _doubts_of_cors(settings: Settings) -> Iterator[str]:
    given = [key for key in CORS if getattr(settings, key)]
    missing = [key for key in CORS if key not in given]
    if given and missing:
        yield f"{', '.join(given)}: no effect without {', '.join(missing)}"
    if re.search(r"[,\s]", settings.cors_allowed_origin):
        yield "cors_allowed_origin: browsers take one origin, or *"


def _doubts_of_models(models: ModelSettings) -> Iterator[str]:
    versions = [one for by_version in models.values() for one in by_version.values()]
    for text in dict.fromkeys(
        text for one in versions for text in ignored_values(_without_lone(one))
    ):
        yield f"models: {text}"
    for word in dict.fromkeys(itertools.chain.from_iterable(versions)):
        alike = difflib.get_close_matches(word, _WORDS, n=1, cutoff=0.8)
        if alike and word not in _WORDS:
            yield f"models: {word} has no effect; did you mean {alike[0]}?"


def _without_lone(version: Mapping[str, Any]) -> Mapping[str, Any]:
    # The archive's model-config.yaml may have the other one of the two.
    pair = {"minWorkers", "maxWorkers"}
    lone = pair if not pair <= version.keys() else set()
    return {word: value for word, value in version.items() if word not in lone}


def _check_pattern(name: str, pattern: str, advice: str = "") -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(
            f"{name}: {pattern!r} is not a regular expression ({error}){advice}"
        ) from error
