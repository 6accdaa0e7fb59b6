"""Handlers' metrics of one model version: a worker records, an ingress reads."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from redis.exceptions import ResponseError

from batching.metrics import Measurement, MetricKind, Series
from batching.models.spec import VersionKey
from batching.store.clients import at
from batching.store.held_connections import Client, Command
from batching.store.keys import VersionKeys
from batching.store.scripts.loader import command, ordered_keys, script, source

log = logging.getLogger(__name__)

# Of one version: some hundred metrics with a few labels, or a dozen histograms of each.
MAX_FIELDS = 2000
RECORD_AT_ONCE = 500


class HandlerMeasurements:
    """Records the metrics of one version.

    After an error the same measurements may be recorded again; if only the answer was lost, those
    of a counter then count twice. A full Redis has them dropped.
    """

    def __init__(self, client: Client, key: VersionKey) -> None:
        keys = VersionKeys.of(key)
        self._keys = ordered_keys("record", keys)
        self._client = at(client, keys.tag)
        self._record = script(self._client, "record")
        self._has_told = False

    def prepare(self) -> None:
        """Has Redis know the script, or `calls` would run later than the calls they go with."""
        self._client.script_load(source("record"))

    def record(self, measurements: Sequence[Measurement]) -> int:
        """Adds the measurements; returns how many were dropped, as the version has too many series.

        Raises redis' own errors, but for those of the script.
        """
        answers: list[int | ResponseError] = []
        for arguments in _arguments(measurements):
            try:
                answers.append(self._record(keys=self._keys, args=arguments))
            except ResponseError as error:
                answers.append(error)
        return self.note(answers)

    def calls(self, measurements: Sequence[Measurement]) -> list[Command]:
        """Returns what `record` runs, for a caller that sends it along with other calls."""
        return [command("record", self._keys, some) for some in _arguments(measurements)]

    def note(self, answers: Sequence[int | ResponseError]) -> int:
        """Logs what the script did not take; returns how many were dropped."""
        dropped = 0
        for answer in answers:
            if isinstance(answer, ResponseError):
                log.error("metrics refused: %s", answer)
            else:
                dropped += max(0, answer)
        if dropped and not self._has_told:
            self._has_told = True
            log.warning("the model measures too many series: %d were dropped", dropped)
        return dropped


def _arguments(measurements: Sequence[Measurement]) -> Iterator[list[str | float]]:
    for start in range(0, len(measurements), RECORD_AT_ONCE):
        arguments: list[str | float] = [MAX_FIELDS]
        for measured in measurements[start : start + RECORD_AT_ONCE]:
            operation = "set" if measured.series.kind is MetricKind.GAUGE else "add"
            arguments += (operation, measured.series.to_field(), measured.value)
        yield arguments


def read_metrics(client: Client, key: VersionKey) -> dict[Series, float]:
    """Returns all series of the version and their values; raises redis' own errors."""
    values: dict[Series, float] = {}
    names = VersionKeys.of(key)
    for field, value in at(client, names.tag).hgetall(names.metrics).items():
        with contextlib.suppress(ValueError):  # Redis is a socket that others may write to
            values[Series.from_field(field)] = float(value)
    return values
