"""Refuses a torch whose `weights_only` does not protect. Does not import torch."""

import importlib.metadata
import re

# CVE-2025-32434: up to 2.5.1 a checkpoint could run code in spite of weights_only=True.
MIN_VERSION = (2, 6)


def require_safe_torch() -> None:
    """Raises ImportError if torch is too old; handlers may do without torch."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < MIN_VERSION:
        raise ImportError(f"torch {version} loads malicious checkpoints: 2.6 or later is needed")
