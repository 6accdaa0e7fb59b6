"""What handlers import from TorchServe's own service."""

from typing import Any

from ts.utils.util import PredictionException

__all__ = ["PredictionException", "emit_metrics"]


def emit_metrics(metrics: Any) -> None:
    """Nothing more happens: what is in `context.metrics` is emitted without being asked for."""
