"""MANIFEST.json and model-config.yaml: what an archive says of its model."""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from batching.errors import InvalidModel
from batching.models.registration import RUNTIMES
from batching.models.spec import DEFAULT_VERSION
from batching.settings.files import load_yaml

MANIFEST_PATH = PurePosixPath("MAR-INF/MANIFEST.json")
# LSP is the C++ backend's: a valid manifest, which the registration then refuses.
_RUNTIMES = (*RUNTIMES, "LSP")

_FILE_KEYS = (
    "handler",
    "modelFile",
    "serializedFile",
    "configFile",
    "requirementsFile",
    "sourceVocab",
    "target",
)

DEFAULT_FUNCTION = "handle"
BUILT_IN_PACKAGE = "ts.torch_handler"
# TorchServe's sentence, which names another file than it means.
_UNPARSED = "Failed to parse signature.json. MANIFEST.json"


def parse_manifest(text: bytes) -> dict[str, Any]:
    """Returns a manifest that names a model; version and runtime may be left out.

    Source: TorchServe 0.12 ModelArchive.validate; the texts are its own.

    Raises:
        InvalidModel: it describes no model.
    """
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{_UNPARSED} is not JSON: {error}.") from error
    if not isinstance(manifest, dict):
        raise InvalidModel(f"{_UNPARSED} is not a JSON object.")
    model = manifest.get("model", {})
    if not isinstance(model, dict):
        raise InvalidModel("Missing Model entry in manifest file.")
    if not as_text(model.get("modelName")):
        raise InvalidModel("Model name is not defined.")
    if not as_text(model.get("modelVersion", DEFAULT_VERSION)):
        raise InvalidModel("Model version is not defined.")
    if manifest.get("runtime", "python") not in _RUNTIMES:
        raise InvalidModel("Runtime is not defined or invalid.")
    return manifest


def config_file_of(manifest: Mapping[str, Any] | None) -> str:
    """Returns the name of model-config.yaml in the archive; empty when it has none."""
    model = (manifest or {}).get("model") or {}
    return as_text(model.get("configFile")) or ""


def named_files(manifest: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the files that a manifest may name, relative to the model's folder; some are none."""
    model = (manifest or {}).get("model") or {}
    for name in filter(None, map(as_text, map(model.get, _FILE_KEYS))):
        module = name.partition(":")[0]
        for file in (name, module, f"{module}.py"):
            if "\0" not in file and not {"/", ".."} & {*PurePosixPath(file).parts}:
                yield file


def parse_config(text: bytes | None, config_file: str) -> dict[str, Any]:
    """Returns model-config.yaml as Python values; {} when it is empty.

    Raises:
        InvalidModel: no file, or not a YAML mapping.
    """
    if text is None:
        raise InvalidModel(f"The manifest names {config_file}, but the archive does not hold it.")
    try:
        config = load_yaml(text)
    except ValueError as error:
        raise InvalidModel(f"{config_file} is not valid YAML: {error}.") from error
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InvalidModel(f"{config_file} is not a YAML mapping.")
    return config


def config_as_json(config: dict[str, Any], config_file: str) -> dict[str, Any]:
    """Returns the config as it travels; a worker reads the file again and sees dates and the like.

    Raises:
        InvalidModel: JSON cannot express it, as for a key that is a date.
    """
    try:
        return dict(json.loads(json.dumps(config, default=str)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{config_file} holds what JSON cannot express: {error}.") from error


def split_handler(handler: str) -> tuple[str, str]:
    """Splits `some/path/file.py:function` into (`file`, `function`)."""
    file, _, function_name = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function_name or DEFAULT_FUNCTION


def as_text(value: Any) -> str | None:
    """Returns text as it is, a number as text (`"modelVersion": 1.0`), and None for the rest."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else None
