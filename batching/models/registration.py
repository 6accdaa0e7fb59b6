"""What a registration makes of its parameters, the archive and the configuration.

TorchServe's parameter names are translated here, once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batching.errors import BadRequest, InvalidModel
from batching.models.spec import (
    BATCH_POLICIES,
    DEFAULT_VERSION,
    NAME_PATTERN,
    VERSION_PATTERN,
    ArchiveInfo,
    ModelSpec,
)

_INTEGER_PATTERN = re.compile(r"[+-]?[0-9]{1,20}")
RUNTIMES = ("python", "python3")
MAX_WORKERS_PER_NODE = 1024
# Java's int, as in TorchServe: 68 years of seconds. Python reads any number of digits, and then no
# clock or system call takes them.
MIN_INTEGER, MAX_INTEGER = -(2**31), 2**31 - 1

# Stands for the archive in `check_parameters`, before it is fetched. It fits all parameters that
# some archive would fit, so that only those are refused that would be with every archive.
_ANY_ARCHIVE = ArchiveInfo(
    url="",
    sha256="",
    model_name="any",
    model_version=DEFAULT_VERSION,
    handler="",
    runtime="python",
    manifest=None,
    config={
        "batchPolicy": "adaptive",
        "minWorkers": 1,
        "maxWorkers": 1,
        "responseTimeout": 1,
        "startupTimeout": 1,
    },
)


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What config.properties says of models that say nothing themselves."""

    default_workers_per_model: int = 0
    default_response_timeout_s: int = 120
    default_startup_timeout_s: int = 120
    job_queue_size: int = 100
    queue_timeout_s: float = 120.0
    handler: str = ""
    model_settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


def int_parameter(parameters: Mapping[str, Any], name: str, default: int) -> int:
    """Returns an integer of 32 bits; anything else silently becomes the default.

    Not all that Python's `int` takes: a count of 10**11 workers would be believed.
    Source: TorchServe 0.12 `NettyUtils.getIntParameter`.
    """
    text = str(parameters.get(name, ""))
    if not _INTEGER_PATTERN.fullmatch(text):
        return default
    number = int(text)
    return number if MIN_INTEGER <= number <= MAX_INTEGER else default


def bool_parameter(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Returns a boolean parameter: only the word `true`, in any case, is true."""
    return str(parameters[name]).lower() == "true" if name in parameters else default


def spec_from_registration(
    parameters: Mapping[str, Any],
    archive: ArchiveInfo,
    defaults: ModelDefaults,
) -> ModelSpec:
    """Returns the spec that `POST /models` with these parameters registers for this archive.

    `batch_size` and `max_batch_delay`: parameter over model-config.yaml over `models` of
    config.properties over default. Timeouts and workers: model-config.yaml over `models` over
    parameter over default.
    Source: torchserve 0.12 ModelManager.registerModel, documented under "Register a model".

    Raises:
        BadRequest: a runtime, number or name that nobody can serve.
        InvalidModel: the archive does not say how the model is called.
    """
    model_name = _checked_name(str(parameters.get("model_name") or archive.model_name))
    model_version = _checked_version(archive.model_version or DEFAULT_VERSION)
    configured = defaults.model_settings.get(model_name, {}).get(model_version, {})
    config = _ConfigReader({**configured, **archive.config})
    batch_size, delay_ms = _batching(parameters, config)
    policy, slo_ms = _policy(parameters, config)
    asked = int_parameter(parameters, "initial_workers", defaults.default_workers_per_model)
    min_worker, max_worker = config.workers(default=max(0, asked))
    check_worker_count(min_worker)
    response_s, startup_s = _timeouts(parameters, config, defaults)
    job_queue_size, queue_timeout_s = _queue_limits(parameters, config, defaults)
    return ModelSpec(
        model_name=model_name,
        model_version=model_version,
        model_url=archive.url,
        handler=str(parameters.get("handler") or archive.handler or defaults.handler),
        runtime=_checked_runtime(parameters, archive),
        archive_sha256=archive.sha256,
        batch_size=batch_size,
        max_batch_delay_ms=delay_ms,
        batch_policy=policy,
        latency_slo_ms=slo_ms,
        response_timeout_s=response_s,
        startup_timeout_s=startup_s,
        queue_timeout_s=queue_timeout_s,
        client_timeout_ms=config.integer("clientTimeoutInMills", 0),
        max_retry_timeout_s=config.integer("maxRetryTimeoutInSec", 300),
        job_queue_size=job_queue_size,
        use_job_ticket=config.flag("useJobTicket"),
        min_worker=min_worker,
        max_worker=max_worker,
        device_type=config.text("deviceType", ""),
        device_ids=config.integers("deviceIds"),
        manifest=archive.manifest,
        config=archive.config,
    )


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Some archive could be registered with these parameters of `POST /models`.

    Raises:
        BadRequest: none could, so none has to be fetched.
    """
    spec_from_registration(parameters, _ANY_ARCHIVE, ModelDefaults())


def _checked_runtime(parameters: Mapping[str, Any], archive: ArchiveInfo) -> str:
    runtime = str(parameters.get("runtime", archive.runtime))
    if runtime not in RUNTIMES:
        raise BadRequest(f"Invalid RuntimeType value: {runtime}")
    return runtime


def _batching(parameters: Mapping[str, Any], config: "_ConfigReader") -> tuple[int, int]:
    batch_size = int_parameter(parameters, "batch_size", config.integer("batchSize", 1))
    delay_ms = int_parameter(parameters, "max_batch_delay", config.integer("maxBatchDelay", 100))
    if batch_size < 1:
        raise BadRequest(f"batch_size must be 1 or more, not {batch_size}.")
    if delay_ms < 0:
        raise BadRequest(f"max_batch_delay must be 0 or more milliseconds, not {delay_ms}.")
    return batch_size, delay_ms


def _policy(parameters: Mapping[str, Any], config: "_ConfigReader") -> tuple[str, int]:
    policy = str(parameters.get("batch_policy", config.text("batchPolicy", "fixed")))
    slo_ms = int_parameter(parameters, "latency_slo_ms", config.integer("latencySloMs", 0))
    if policy not in BATCH_POLICIES:
        raise BadRequest(f"batch_policy must be one of {', '.join(BATCH_POLICIES)}.")
    if slo_ms < 0 or (slo_ms and policy != "adaptive"):
        raise BadRequest("latency_slo_ms is a number of milliseconds, with batch_policy=adaptive.")
    return policy, slo_ms


def _queue_limits(
    parameters: Mapping[str, Any], config: "_ConfigReader", defaults: ModelDefaults
) -> tuple[int, float]:
    queue_size = config.integer("jobQueueSize", defaults.job_queue_size)
    timeout_s = int_parameter(parameters, "queue_timeout", 0) or defaults.queue_timeout_s
    if queue_size < 1 or timeout_s <= 0:
        raise BadRequest("jobQueueSize and queue_timeout must be 1 or more.")
    return queue_size, timeout_s


def _timeouts(
    parameters: Mapping[str, Any], config: "_ConfigReader", defaults: ModelDefaults
) -> tuple[int, int]:
    response_s = int_parameter(parameters, "response_timeout", defaults.default_response_timeout_s)
    startup_s = int_parameter(parameters, "startup_timeout", defaults.default_startup_timeout_s)
    # Unlike TorchServe's, a model-config.yaml without a timeout leaves the parameter be.
    response_s = config.integer("responseTimeout", response_s)
    startup_s = config.integer("startupTimeout", startup_s)
    if response_s < 1 or startup_s < 1:
        raise BadRequest("response_timeout and startup_timeout must be 1 second or more.")
    return response_s, startup_s


def check_worker_count(min_worker: int) -> None:
    """A node may run that many workers of a model.

    Raises:
        BadRequest: it is a slip of the hand that would fill every node with processes.
    """
    if min_worker > MAX_WORKERS_PER_NODE:
        raise BadRequest(f"A node runs at most {MAX_WORKERS_PER_NODE} workers of a model.")


def _checked_name(name: str) -> str:
    if not name:
        raise InvalidModel("Model name is not defined.")
    if not NAME_PATTERN.fullmatch(name):
        raise BadRequest(
            "Invalid model name: use letters, digits, '.', '_' and '-', at most 128 of them, "
            "beginning with a letter, digit or '_'."
        )
    return name


def _checked_integer(value: int, name: str) -> int:
    if not MIN_INTEGER <= value <= MAX_INTEGER:
        raise BadRequest(f"{name} must be from {MIN_INTEGER} to {MAX_INTEGER}.")
    return value


def _checked_version(version: str) -> str:
    if not VERSION_PATTERN.fullmatch(version):
        raise BadRequest(
            "Invalid model version: use letters, digits, '.', '_', '+' and '-', at most 128 of "
            "them, beginning with a letter, digit or '_'."
        )
    return version


class _ConfigReader:
    """Reads model-config.yaml; a value of the wrong type counts as missing, as in TorchServe.

    Raises:
        BadRequest: an integer that is out of all bounds.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def integer(self, name: str, default: int) -> int:
        value = self._config.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            return default
        return _checked_integer(value, name)

    def flag(self, name: str) -> bool:
        return self._config.get(name) is True

    def text(self, name: str, default: str) -> str:
        value = self._config.get(name)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._config.get(name)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            return ()
        return tuple(_checked_integer(item, name) for item in value)

    def workers(self, default: int) -> tuple[int, int]:
        low, high = self.integer("minWorkers", 0), self.integer("maxWorkers", 0)
        return (low, high) if 0 < low <= high else (default, default)
