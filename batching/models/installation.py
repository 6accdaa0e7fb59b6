"""Says whether an archive's requirements.txt is installed, and how long that may take."""

from batching.models.spec import ModelSpec

INSTALL_TIMEOUT_S = 600.0


def requirements_file(spec: ModelSpec) -> str:
    """Returns the file that the archive's manifest names; empty without one."""
    model = (spec.manifest or {}).get("model")
    name = model.get("requirementsFile") if isinstance(model, dict) else None
    return name if isinstance(name, str) else ""


def install_patience_s(spec: ModelSpec, *, is_allowed: bool) -> float:
    """Returns how long a node may install before it starts the model's first worker, in seconds."""
    is_installed = is_allowed and bool(requirements_file(spec))
    return INSTALL_TIMEOUT_S if is_installed else 0.0
