"""What `context.metrics` raises, so that handlers can catch it."""


class MetricsCacheKeyError(KeyError):
    """There is no such metric."""


class MetricsCacheTypeError(TypeError):
    """A name or unit is no text."""


class MetricsCacheValueError(ValueError):
    """There is no such unit."""
