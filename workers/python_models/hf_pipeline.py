"""Placeholder until the branch that serves files without code is merged."""

from pathlib import Path

from ferry.modeling import Model


class Pipeline(Model):
    """Serves such a target."""

    def __init__(self, name: str) -> None:
        raise NotImplementedError(name, Path)
