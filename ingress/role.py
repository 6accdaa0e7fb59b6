"""The APIs that a listener may serve."""

from enum import StrEnum


class Role(StrEnum):
    """One of TorchServe's three APIs."""

    INFERENCE = "inference"
    MANAGEMENT = "management"
    METRICS = "metrics"
