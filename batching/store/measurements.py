"""Handlers' metrics of one model version: a worker records, an ingress reads."""

import contextlib
import logging
from collections.abc import Sequence

from redis.exceptions import ResponseError

from batching.metrics.series import Measurement, MetricKind, Series
from batching.models.spec import VersionKey
from batching.store.client_types import Client
from batching.store.clients import at
from batching.store.keys import VersionKeys
from batching.store.scripts.loader import ordered_keys, script

log = logging.getLogger(__name__)

# Of one version: some hundred metrics with a few labels, or a dozen histograms of each.
MAX_FIELDS = 2000
RECORD_AT_ONCE = 500


class HandlerMeasurements:
    """Records the metrics of one version; raises redis' own errors."""

    def __init__(self, client: Client, key: VersionKey) -> None:
        self._keys = VersionKeys.of(key)
        self._record = script(at(client, self._keys.tag), "record")

    def record(self, measurements: Sequence[Measurement]) -> int:
        """Adds the measurements; returns how many were dropped, as the version has too many series.

        After an error the same measurements may be recorded again; if only the answer was lost,
        those of a counter then count twice. A full Redis has them dropped.
        """
        names = ordered_keys("record", self._keys)
        dropped = 0
        for start in range(0, len(measurements), RECORD_AT_ONCE):
            arguments: list[str | float] = [MAX_FIELDS]
            for one in measurements[start : start + RECORD_AT_ONCE]:
                operation = "set" if one.series.kind is MetricKind.GAUGE else "add"
                arguments += (operation, one.series.to_field(), one.value)
            try:
                dropped += max(0, self._record(keys=names, args=arguments))
            except ResponseError as error:
                log.error("metrics refused: %s", error)
        return dropped


def read_metrics(client: Client, key: VersionKey) -> dict[Series, float]:
    """Returns all series of the version and their values; raises redis' own errors."""
    found: dict[Series, float] = {}
    names = VersionKeys.of(key)
    for field, value in at(client, names.tag).hgetall(names.metrics).items():
        with contextlib.suppress(ValueError):  # Redis is a socket that others may write to
            found[Series.from_field(field)] = float(value)
    return found
