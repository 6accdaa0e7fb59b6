"""Translates the variables of Vertex AI and SageMaker into ordinary settings, as FERRY_ variables.

They count where the operator says nothing: a FERRY_ variable that is set already stays.
Source: Vertex AI "Custom container requirements for inference"; SageMaker "Custom inference code
with hosting services"; sagemaker-inference `environment.py` and sagemaker-pytorch-inference
`ts_environment.py`, as interfaces.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batching.errors import ServeError
from batching.settings.settings import SettingsError
from ingress.torchserve.routes import parse_prediction_path
from workers.archives.model_archive import inspect_archive

Variables = Mapping[str, str]

# Where neither platform looks: nothing outside of the container reaches these.
_PRIVATE_PORTS = (8081, 8082, 8083)
_ONLY_MODEL = "/invocations"
_HEALTH_ROUTES = frozenset({"/ping", "/readyz", "/livez", "/v2/health/live", "/v2/health/ready"})
_FOLDER_IS_ARCHIVE = "MAR-INF"
# The name of a model whose folder has none.
_MODEL = "model"
# SageMaker's own words for the settings of one model, and model-config.yaml's.
_TS_WORDS = {
    "SAGEMAKER_TS_BATCH_SIZE": "batchSize",
    "SAGEMAKER_TS_MAX_BATCH_DELAY": "maxBatchDelay",
    "SAGEMAKER_TS_MIN_WORKERS": "minWorkers",
    "SAGEMAKER_TS_MAX_WORKERS": "maxWorkers",
    "SAGEMAKER_TS_RESPONSE_TIMEOUT": "responseTimeout",
}
_SAGEMAKER_WORDS = {
    "SAGEMAKER_MODEL_SERVER_WORKERS": "FERRY_DEFAULT_WORKERS_PER_MODEL",
    "SAGEMAKER_MODEL_SERVER_TIMEOUT": "FERRY_DEFAULT_RESPONSE_TIMEOUT",
}


def platform_variables(environment: Variables, properties: Variables) -> dict[str, str]:
    """Returns the FERRY_ variables that this platform's own ones stand for; {} on no platform.

    Args:
        environment: of the container.
        properties: of its config.properties.

    Raises:
        SettingsError: the platform asks for something that this image does not do.
    """
    if "AIP_HTTP_PORT" in environment:
        found = _vertex(environment, properties)
    elif _is_sagemaker(environment):
        found = _sagemaker(environment)
    else:
        return {}
    return {name: text for name, text in found.items() if name not in environment}


def _vertex(environment: Variables, properties: Variables) -> dict[str, str]:
    port = _number("AIP_HTTP_PORT", environment["AIP_HTTP_PORT"])
    found = _addresses(port, _PRIVATE_PORTS)
    found["FERRY_PATH_ALIASES"] = ",".join(_aliases(environment))
    if "service_envelope" not in properties and "TS_SERVICE_ENVELOPE" not in environment:
        # {"instances": [...]} comes, and {"predictions": [...]} goes.
        found["FERRY_SERVICE_ENVELOPE"] = "json"
    if storage := environment.get("AIP_STORAGE_URI"):
        if "://" in storage:
            raise SettingsError(
                f"AIP_STORAGE_URI={storage}: this image reads folders, not buckets. Copy the "
                "archive into the image, or mount the bucket: docs/vertex-ai.md"
            )
        found |= _models_of(Path(storage), {})
    return found


def _aliases(environment: Variables) -> Iterator[str]:
    predict, health = environment.get("AIP_PREDICT_ROUTE"), environment.get("AIP_HEALTH_ROUTE")
    target = parse_prediction_path(predict or _ONLY_MODEL)
    # `/anything/predict` is an old path of TorchServe's, which names a model.
    if predict and predict != _ONLY_MODEL and (target is None or target.takes_query):
        yield f"{predict}={_ONLY_MODEL}"
    if health and health not in _HEALTH_ROUTES:
        yield f"{health}=/readyz"


def _is_sagemaker(environment: Variables) -> bool:
    folder = _sagemaker_folder(environment) / "model"
    is_named = any(name.startswith("SAGEMAKER_") for name in environment)
    return is_named or (folder.is_dir() and any(folder.iterdir()))


def _sagemaker_folder(environment: Variables) -> Path:
    return Path(environment.get("SAGEMAKER_BASE_DIR", "/opt/ml"))


def _sagemaker(environment: Variables) -> dict[str, str]:
    ports = _port_range(environment.get("SAGEMAKER_SAFE_PORT_RANGE", ""))
    name = "SAGEMAKER_BIND_TO_PORT"
    found = _addresses(_number(name, environment.get(name, "8080")), ports)
    found |= {
        ours: environment[its] for its, ours in _SAGEMAKER_WORDS.items() if its in environment
    }
    name = "SAGEMAKER_CONTAINER_LOG_LEVEL"
    if level := environment.get(name):
        found["FERRY_LOG_LEVEL"] = logging.getLevelName(_number(name, level)).lower()
    folder = _sagemaker_folder(environment)
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        # SageMaker itself registers models, at the port of predictions, which only it reaches.
        return {
            "FERRY_DEFAULT_WORKERS_PER_MODEL": "1",
            **found,
            "FERRY_MANAGEMENT_ADDRESS": found["FERRY_INFERENCE_ADDRESS"],
            "FERRY_ALLOW_OPEN_MANAGEMENT": "true",
            "FERRY_ENABLE_MODEL_API": "true",
            "FERRY_MODEL_STORE": str(folder / "models"),
        }
    model = folder / "model"
    if model.is_dir() and any(model.iterdir()):
        found |= _models_of(model, _model_settings(environment))
    return found


def _model_settings(environment: Variables) -> dict[str, Any]:
    given = {
        word: _number(name, environment[name])
        for name, word in _TS_WORDS.items()
        if name in environment
    }
    if {"minWorkers", "maxWorkers"} & given.keys():
        # They count together only.
        low = given.setdefault("minWorkers", 1)
        given.setdefault("maxWorkers", low)
    return given


def _models_of(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables that serve what a platform has put into a folder.

    Args:
        folder: holds archives, or is one that was unpacked.
        settings: of each model, in the words of model-config.yaml.
    """
    found = {"FERRY_MODEL_STORE": str(folder)}
    archives = sorted(folder.glob("*.mar"))
    if (folder / _FOLDER_IS_ARCHIVE).is_dir():
        archives, found["FERRY_LOAD_MODELS"] = [folder], f"{_MODEL}={folder}"
    elif archives:
        found["FERRY_LOAD_MODELS"] = ",".join(path.name for path in archives)
    else:
        raise SettingsError(
            f"{folder} holds neither a .mar nor an unpacked archive, with its "
            f"{_FOLDER_IS_ARCHIVE}: make one with torch-model-archiver"
        )
    if settings:
        found["FERRY_MODELS"] = json.dumps(dict(_named(path, settings) for path in archives))
    return found


def _named(path: Path, settings: Mapping[str, Any]) -> tuple[str, Any]:
    try:
        archive = inspect_archive(path, path.name)
    except ServeError as error:
        raise SettingsError(f"{path}: {error.message}") from error
    name = _MODEL if path.is_dir() else archive.model_name
    return name, {archive.model_version: settings}


def _addresses(port: int, private_ports: tuple[int, ...]) -> dict[str, str]:
    management, metrics = [one for one in private_ports if one != port][:2]
    return {
        "FERRY_INFERENCE_ADDRESS": f"http://0.0.0.0:{port}",
        "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{management}",
        "FERRY_METRICS_ADDRESS": f"http://127.0.0.1:{metrics}",
    }


def _port_range(text: str) -> tuple[int, ...]:
    if not text:
        return _PRIVATE_PORTS
    name = "SAGEMAKER_SAFE_PORT_RANGE"
    first, _, last = text.partition("-")
    ports = tuple(range(_number(name, first), _number(name, last) + 1))
    if len(ports) < len(_PRIVATE_PORTS):
        raise SettingsError(f"{name}={text} has fewer than three ports")
    return ports


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise SettingsError(f"{name}={text!r} is no whole number") from error
