"""Writes replies: small ones with the call of the script, large ones before it, uncopied."""

from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError, ResponseError

from batching.metrics import Measurement
from batching.protocol import INLINE_LIMIT_BYTES, JOB, Owned, Reply
from batching.store.held_connections import HeldConnection, joined, packed_set
from batching.store.keys import REPLY_TTL_MS
from batching.store.measurements import HandlerMeasurements

LOWEST_FAILURE = 400  # of the statuses of replies


class ReplyWriter:
    """Writes the replies of one worker; raises redis' own errors, and may be called again."""

    def __init__(
        self,
        connection: HeldConnection,
        worker_id: str,
        keys: Sequence[str],
        large_prefix: str,
        measurements: HandlerMeasurements,
    ) -> None:
        self._connection = connection
        self._worker_id = worker_id
        self._keys = keys
        self._large_prefix = large_prefix
        self._measurements = measurements

    def write(
        self,
        items: Sequence[Owned],
        replies: Sequence[Reply],
        measured: Sequence[Measurement] = (),
    ) -> list[int]:
        """Records what was measured and publishes the replies; returns the codes of `reply.lua`."""
        stored = self._store_large(items, replies)
        arguments: list[str | int | bytes] = [self._worker_id, REPLY_TTL_MS]
        for item, reply in zip(items, replies, strict=True):
            name = item.request_id
            value = b"@" if name in stored else name.encode() + reply.encode()
            if item.ingress_id == JOB:
                value = (b"+" if reply.status < LOWEST_FAILURE else b"-") + value
            arguments += (name, item.attempt, item.ingress_id, value)
        if not measured:
            return [*self._connection.run("reply", self._keys, arguments)]
        # First what was measured: whoever has the answer finds it.
        calls = [*self._measurements.calls(measured), ("reply", self._keys, arguments)]
        *recorded, codes = self._connection.run_all(calls)
        if isinstance(codes, ResponseError):
            raise codes
        self._measurements.note(recorded)
        return [*codes]

    def _store_large(self, items: Sequence[Owned], replies: Sequence[Reply]) -> set[str]:
        """Stores the replies that are too large for a script; returns the ids of their requests."""
        large: list[str] = []
        sets = []
        for item, reply in zip(items, replies, strict=True):
            if len(reply.body) > INLINE_LIMIT_BYTES:
                name = item.request_id
                # The attempt is part of the name, so a stale worker cannot overwrite a newer
                # answer.
                key = f"{self._large_prefix}{name}:{item.attempt}"
                if item.ingress_id == JOB:
                    # Tried again, a job's attempts are counted anew.
                    key += f"-{self._worker_id}"
                sets.append(packed_set(key, reply.to_wire(name.encode()), REPLY_TTL_MS))
                large.append(name)
        if not large:
            return set()
        answers = self._connection.exchange([*joined(sets)], len(large))
        stored = set()
        for name, answer in zip(large, answers, strict=True):
            # At maxmemory the script may store what a plain SET may not: it frees the request
            # first.
            if isinstance(answer, OutOfMemoryError):
                continue
            if isinstance(answer, ResponseError):
                raise answer
            stored.add(name)
        return stored
