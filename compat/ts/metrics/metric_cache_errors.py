"""Defines the errors of `context.metrics`, for handlers that catch them."""


class MetricsCacheKeyError(KeyError):
    """There is no such metric."""


class MetricsCacheTypeError(TypeError):
    """A name or unit is not text."""


class MetricsCacheValueError(ValueError):
    """There is no such unit."""
