"""Makes specs from a registration's parameters, model-config.yaml and the configuration."""

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from batching.errors import BadRequest, InvalidModel
from batching.models.spec import (
    DEFAULT_VERSION,
    MAX_INTEGER,
    MIN_INTEGER,
    NAME_PATTERN,
    PARAMETERS,
    VERSION_PATTERN,
    ArchiveInfo,
    ModelSpec,
    Parameter,
)

# Key -> the type that counts.
SERVER_TYPES: Mapping[str, type] = {it.word: it.kind for it in PARAMETERS}

_ONE_PROCESS = "a model cannot be spread over several processes"
# Key -> why a handler that needs it would answer wrongly.
NOT_HERE: Mapping[str, str] = {
    "torchrun": _ONE_PROCESS,
    "parallelType": _ONE_PROCESS,
    "asyncCommunication": "handlers answer a whole batch at once",
    "continuousBatching": "a batch stays as it was formed until the handler returns",
    "sequenceBatching": "requests of one sequence may go to different workers",
}
_NO_SEQUENCES = "there is no sequence batching"
# Key -> what happens instead.
WITHOUT_EFFECT: Mapping[str, str] = {
    "useVenv": "requirements.txt, if installed at all, always gets an environment of its own",
    "parallelLevel": "a worker is one process",
    "useJobTicket": "requests wait, up to job_queue_size",
    "sequenceMaxIdleMSec": _NO_SEQUENCES,
    "sequenceTimeoutMSec": _NO_SEQUENCES,
    "maxNumSequence": _NO_SEQUENCES,
    "maxSequenceJobQueueSize": _NO_SEQUENCES,
}

_INTEGER_PATTERN = re.compile(r"[+-]?[0-9]{1,20}")
_ARCHIVE_SUFFIXES = re.compile(r"(\.mar|\.tar\.gz|\.tgz|\.tar|\.model)$")
RUNTIMES = ("python", "python3")
MAX_WORKERS_PER_NODE = 1024

# TorchServe's defaults neither serve nor batch; `defaults=serving` replaces them by these.
SERVING = "serving"
SERVING_DEFAULTS = {"min_worker": 1, "batch_size": 8, "batch_policy": "adaptive"}


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Holds config.properties' defaults for models."""

    parameters: Mapping[str, Any] = field(default_factory=dict)  # fields of `ModelSpec`
    handler: str = ""
    model_settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


def int_parameter(parameters: Mapping[str, Any], name: str, default: int) -> int:
    """Returns an integer of 32 bits, or the default. Source: TorchServe 0.12 `NettyUtils`."""
    text = str(parameters.get(name, ""))
    if not _INTEGER_PATTERN.fullmatch(text):
        return default
    number = int(text)
    return number if MIN_INTEGER <= number <= MAX_INTEGER else default


def bool_parameter(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Returns a boolean parameter: only `true`, in any case, is true."""
    return str(parameters[name]).lower() == "true" if name in parameters else default


def spec_from_registration(
    parameters: Mapping[str, Any],
    archive: ArchiveInfo,
    defaults: ModelDefaults,
) -> ModelSpec:
    """Returns the spec that `POST /models` with these parameters registers for this archive.

    Most values: parameter over model-config.yaml over `models` of config.properties over default.
    Timeouts and workers: model-config.yaml over `models` over parameter over default; unlike in
    TorchServe, a parameter counts if model-config.yaml has no timeout. The parameter
    `defaults=serving` changes only the defaults.
    Source: torchserve 0.12 ModelManager.registerModel, documented under "Register a model".

    Raises:
        BadRequest: a runtime, number or name that cannot be served.
        InvalidModel: neither the parameters nor the archive name the model.
    """
    model_name = str(parameters.get("model_name") or archive.model_name)
    if not model_name:
        raise InvalidModel("Model name is not defined.")
    model_version = archive.model_version or DEFAULT_VERSION
    for kind, text, pattern, signs in (
        ("name", model_name, NAME_PATTERN, "'.', '_'"),
        ("version", model_version, VERSION_PATTERN, "'.', '_', '+'"),
    ):
        if not pattern.fullmatch(text):
            raise BadRequest(
                f"Invalid model {kind}: use letters, digits, {signs} and '-', at most 128 of them, "
                "beginning with a letter, digit or '_'."
            )
    runtime = str(parameters.get("runtime", archive.runtime))
    if runtime not in RUNTIMES:
        raise BadRequest(f"Invalid RuntimeType value: {runtime}")
    configured = defaults.model_settings.get(model_name, {}).get(model_version, {})
    return ModelSpec(
        model_name=model_name,
        model_version=model_version,
        model_url=archive.url,
        handler=str(parameters.get("handler") or archive.handler or defaults.handler),
        runtime=runtime,
        archive_sha256=archive.sha256,
        manifest=archive.manifest,
        config=archive.config,
        **_values(parameters, {**configured, **archive.config}, defaults.parameters),
    )


def name_of_archive(url: str) -> str:
    """Returns the model name that an archive's file name stands for."""
    file_name = _ARCHIVE_SUFFIXES.sub("", url.rpartition("/")[2])
    return re.sub(r"\W", "_", file_name, flags=re.ASCII)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuses parameters of `POST /models` with which no archive could be registered."""
    config: dict[str, Any] = {it.word: 1 for it in PARAMETERS if it.is_archives}
    config |= {"maxWorkers": 1, "batchPolicy": "adaptive"}
    archive = ArchiveInfo("", "", "any", DEFAULT_VERSION, "", "python", None, config)
    spec_from_registration(parameters, archive, ModelDefaults())


def _values(
    parameters: Mapping[str, Any], config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    if parameters.get("defaults", SERVING) != SERVING:
        raise BadRequest(f"defaults must be {SERVING}.")
    if "defaults" in parameters:
        # A default of 0 workers means that the operator chose none.
        chosen = {name: value for name, value in defaults.items() if value}
        defaults = {**SERVING_DEFAULTS, **chosen}
    values = {}
    for parameter in PARAMETERS:
        value = defaults.get(parameter.name, parameter.default)
        if parameter.is_archives:
            value = _configured(parameter, config, _requested(parameter, parameters, value))
        else:
            value = _requested(parameter, parameters, _configured(parameter, config, value))
        parameter.check(value)
        values[parameter.name] = value
    if values["latency_slo_ms"] and values["batch_policy"] != "adaptive":
        raise BadRequest("latency_slo_ms is a number of milliseconds, with batch_policy=adaptive.")
    requested = max(0, int_parameter(parameters, "initial_workers", defaults.get("min_worker", 0)))
    workers = worker_range(config) or (requested, requested)
    check_worker_count(min(workers))
    return values | {"min_worker": workers[0], "max_worker": workers[1]}


def _requested(parameter: Parameter, parameters: Mapping[str, Any], default: Any) -> Any:
    if not parameter.rest:
        return default
    if parameter.kind is str:
        return str(parameters.get(parameter.rest, default))
    number = int_parameter(parameters, parameter.rest, default)
    return default if parameter.is_unset_by_zero and number == 0 else number


def _configured(parameter: Parameter, config: Mapping[str, Any], default: Any) -> Any:
    """Returns model-config.yaml's value; as in TorchServe, the default if its type is wrong."""
    value: Any = config.get(parameter.word)
    if not has_type(value, parameter.kind):
        return default
    if parameter.kind is str:
        return value
    numbers = value if parameter.kind is list else [value]
    if not all(isinstance(number, int) for number in numbers):
        return ()
    if not all(MIN_INTEGER <= number <= MAX_INTEGER for number in numbers):
        raise BadRequest(f"{parameter.word} must be from {MIN_INTEGER} to {MAX_INTEGER}.")
    return tuple(numbers) if parameter.kind is list else value


def check_worker_count(min_worker: int) -> None:
    """Refuses a mistyped number that would fill every node with processes."""
    if min_worker > MAX_WORKERS_PER_NODE:
        raise BadRequest(f"A node runs at most {MAX_WORKERS_PER_NODE} workers of a model.")


def ignored_values(
    config: Mapping[str, Any], types: Mapping[str, type] = SERVER_TYPES
) -> Iterator[str]:
    """Yields a sentence for each value that counts as missing, as in TorchServe."""
    for key, wanted in types.items():
        if key in config and not has_type(config[key], wanted):
            value = reprlib.repr(config[key])
            yield f"{key}: {value} is ignored, it should be of type {wanted.__name__}"
    is_given = config.get("minWorkers") is not None or config.get("maxWorkers") is not None
    if is_given and worker_range(config) is None:
        yield "minWorkers and maxWorkers are ignored: give both, 0 < minWorkers <= maxWorkers"


def worker_range(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns `minWorkers` and `maxWorkers`; None unless both are there and make sense."""
    low: Any = config.get("minWorkers")
    high: Any = config.get("maxWorkers")
    is_pair = has_type(low, int) and has_type(high, int)
    return (low, high) if is_pair and 0 < low <= high else None


def has_type(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def why_not_here(key: str, value: Any) -> str:
    """Explains why a model with this setting cannot be served; "" if it can."""
    if key not in NOT_HERE or not value or (key, value) == ("parallelType", "custom"):
        return ""
    return f"{key}: {value} has no counterpart: {NOT_HERE[key]}"


def require_served(config: Mapping[str, Any]) -> None:
    """Refuses a model whose configuration asks for a feature that is left out, and says why."""
    reasons = [reason for key, value in config.items() if (reason := why_not_here(key, value))]
    if reasons:
        raise InvalidModel(
            f"model-config.yaml: {'; '.join(reasons)}. A handler that can do without is served "
            "once the archive does not say so."
        )
