"""One of the two places from which handlers import PredictionException."""

from ts.utils.util import PredictionException

__all__ = ["PredictionException"]
