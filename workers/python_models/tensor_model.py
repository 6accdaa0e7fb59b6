"""Placeholder until the branch that serves files without code is merged."""

from pathlib import Path

from ferry.modeling import Model


class TensorModel(Model):
    """Serves such a target."""

    def __init__(self, path: Path) -> None:
        raise NotImplementedError(path, Path)
