"""Has the names that handlers import from TorchServe's own service."""

from typing import Any

from ts.utils.util import PredictionException

__all__ = ["PredictionException", "emit_metrics"]


def emit_metrics(metrics: Any) -> None:
    """Does nothing: the metrics in `context.metrics` are emitted anyway."""
