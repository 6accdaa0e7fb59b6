"""Whether the requirements.txt of an archive is installed, and how long that may take."""

from batching.models.spec import ModelSpec
from batching.settings.settings import Settings

INSTALL_TIMEOUT_S = 600.0


def requirements_file(spec: ModelSpec) -> str:
    """The file that the archive's manifest names; empty without one."""
    model = (spec.manifest or {}).get("model")
    name = model.get("requirementsFile") if isinstance(model, dict) else None
    return name if isinstance(name, str) else ""


def install_patience_s(spec: ModelSpec, settings: Settings) -> float:
    """Seconds that pass at most before a node starts the model's first worker."""
    is_installed = settings.install_py_dep_per_model and bool(requirements_file(spec))
    return INSTALL_TIMEOUT_S if is_installed else 0.0
