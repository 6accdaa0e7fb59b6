"""What a listener serves."""

from enum import StrEnum


class Role(StrEnum):
    """One of TorchServe's three APIs."""

    INFERENCE = "inference"
    MANAGEMENT = "management"
    METRICS = "metrics"
