"""MANIFEST.json: what an archive says of its model. Imports nothing that a handler needs."""

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from batching.errors import InvalidModel
from batching.models.registration import RUNTIMES
from batching.models.spec import DEFAULT_VERSION

MANIFEST_PATH = PurePosixPath("MAR-INF/MANIFEST.json")
# LSP is the C++ backend's: a valid manifest, which the registration then refuses.
_RUNTIMES = (*RUNTIMES, "LSP")

DEFAULT_FUNCTION = "handle"
BUILT_IN_PACKAGE = "ts.torch_handler"


def parse_manifest(text: bytes) -> dict[str, Any]:
    """Returns a manifest that names a model; version and runtime may be left out.

    Source: TorchServe 0.12 ModelArchive.validate; the texts are its own.

    Raises:
        InvalidModel: it describes no model.
    """
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModel("Failed to parse signature.json.") from error
    if not isinstance(manifest, dict):
        raise InvalidModel("Failed to parse signature.json.")
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


def split_handler(handler: str) -> tuple[str, str]:
    """`some/path/file.py:function` → (`file`, `function`)."""
    file, _, function_name = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function_name or DEFAULT_FUNCTION


def as_text(value: Any) -> str | None:
    """Text as it is, a number as text (`"modelVersion": 1.0`), anything else not at all."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else None
