"""Reads the metrics_config file: which metrics of handlers are shown, in TorchServe's format.

Source: TorchServe 0.12 ts/configs/metrics.yaml and docs/metrics.md, as an interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batching.metrics.series import MetricKind
from batching.settings.files import load_yaml
from batching.settings.settings import SettingsError


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A metric that a handler may emit; `dimensions` are the names of its labels, in order."""

    name: str
    kind: MetricKind
    unit: str
    dimensions: tuple[str, ...]


_MODEL = ("ModelName", "Level")

# What every TorchServe handler emits; shown when no file says otherwise.
DEFAULT_METRICS = (
    DeclaredMetric("HandlerTime", MetricKind.GAUGE, "ms", _MODEL),
    DeclaredMetric("PredictionTime", MetricKind.GAUGE, "ms", _MODEL),
)


def read_metrics_config(path: Path | None) -> tuple[DeclaredMetric, ...]:
    """Returns the `model_metrics` of the file; without a file, the default ones.

    Raises:
        SettingsError: the file cannot be read, or has another form.
    """
    if path is None:
        return DEFAULT_METRICS
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
        section = document["model_metrics"] or {}
        return tuple(
            _declared(entry, kind) for kind in MetricKind for entry in section.get(kind.value) or ()
        )
    except OSError as error:
        raise SettingsError(f"metrics_config: cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"metrics_config: {path} must have `model_metrics` with lists `counter`, `gauge` and "
            f"`histogram` of name, unit and dimensions ({type(error).__name__}: {error})"
        ) from error


def _declared(entry: Mapping[str, Any], kind: MetricKind) -> DeclaredMetric:
    dimensions = tuple(str(name) for name in entry["dimensions"] or ())
    return DeclaredMetric(str(entry["name"]), kind, str(entry["unit"]), dimensions)
