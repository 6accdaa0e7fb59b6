"""The worker's calls on one version's queue: claim, reply, and waiting for work."""

import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

from msgspec.structs import replace
from redis.exceptions import OutOfMemoryError, ResponseError

from batching.batcher import ClaimLead, Nothing, Partial
from batching.metrics import Measurement
from batching.models.spec import VersionKey
from batching.protocol import (
    INLINE_LIMIT_BYTES,
    Batch,
    Claimed,
    Owned,
    ProtocolError,
    Reply,
    ReplyChunk,
    Request,
)
from batching.store.clients import at
from batching.store.held_connections import Client, HeldConnection, joined, packed_set
from batching.store.keys import LEASE_TTL_MS, REPLY_TTL_MS, VersionKeys
from batching.store.measurements import HandlerMeasurements
from batching.store.node_queue import ReclaimMode, reclaim_arguments, reclaim_keys
from batching.store.records import read_record
from batching.store.redis_errors import AWAY
from batching.store.scripts.loader import ordered_keys, script
from batching.store.waits import ParkedPop, Wakeups

log = logging.getLogger(__name__)

MIN_WAIT_S = 0.001
LOWEST_FAILURE = 400  # of the statuses of replies

JOB_PATIENCE_US = 60_000_000

# Of one answer, as much may wait for a slow client in Redis: a MiB.
CHUNK_LIMIT_BYTES = INLINE_LIMIT_BYTES
MAX_WAITING_CHUNKS = 64


class ReplyCode(IntEnum):
    """Names what `reply.lua` answers for one request."""

    UNWANTED = 0
    STORED = 1
    STORED_BEFORE = 2
    STALE = 3


_REPLY_CODES = tuple(ReplyCode)


class ChunkCode(IntEnum):
    """Names what `chunk.lua` answers for one piece."""

    UNWANTED = 0
    STORED = 1
    STORED_BEFORE = 2
    STALE = 3
    FULL = 4


class WorkerQueue:
    """Gives the batcher requests, and takes replies back.

    Raises redis' own errors; every call may be repeated after one.
    """

    def __init__(self, client: Client, key: VersionKey, worker_id: str, dead_after_ms: int) -> None:
        self._worker_id = worker_id
        self._dead_after_ms = dead_after_ms
        self._keys = keys = VersionKeys.of(key)
        self._client = client = at(client, keys.tag)
        lease = keys.lease_prefix + worker_id
        self._connection = HeldConnection(client)
        self.measurements = HandlerMeasurements(client, key)
        self._more = ParkedPop(client, keys.more_prefix + worker_id)
        self._wakeups = Wakeups(client, keys.wakeups)
        self._claim_lead = ClaimLead()
        self._window_end: float | None = None  # by the monotonic clock; None: no claim ends one
        self._claim_keys = ordered_keys("claim", keys, lease=lease)
        self._reply_keys = ordered_keys("reply", keys, lease=lease)
        self._chunk_keys = ordered_keys("chunk", keys, lease=lease)
        self._progress_keys = ordered_keys("progress", keys, lease=lease)
        self._recover_keys = reclaim_keys(key, worker_id)
        self._chunk = script(client, "chunk")
        self._progress = script(client, "progress")
        self._reclaim = script(client, "reclaim")

    # --- claim

    def claim(self, limit: int, patience_s: float) -> Batch | Partial | Nothing:
        """Claims up to `limit` requests, unless a partial batch may wait for more."""
        try:
            answer = self._run_claim(limit, patience_s)
        except OutOfMemoryError:
            # At maxmemory no window can be opened; taking the requests that wait frees memory.
            answer = self._run_claim(limit, 0.0)
        window_end, self._window_end = self._window_end, None
        kind = answer[0]
        if kind == b"BATCH":
            if window_end is not None:
                self._claim_lead.observe(time.monotonic() - window_end)
            return self._batch(int(answer[1]), answer[2:])
        if kind == b"WAIT":
            return Partial(waiting=answer[1], oldest_age_s=int(answer[2]) / 1e6)
        return Nothing.BUSY if kind == b"BUSY" else Nothing.EMPTY

    def _run_claim(self, limit: int, patience_s: float) -> Any:
        arguments: list[str | int | bytes] = [
            *(self._worker_id, limit, int(patience_s * 1e6), self._dead_after_ms),
            *(LEASE_TTL_MS, REPLY_TTL_MS, JOB_PATIENCE_US),
        ]
        return self._connection.run("claim", self._claim_keys, arguments)

    def _batch(self, now_us: int, fields: Sequence[bytes]) -> Batch | Nothing:
        """Returns what was claimed at this time of Redis' clock: ids, each with its record."""
        ids = [name.decode() for name in fields[0::2]]
        records = [read_record(record) for record in fields[1::2]]
        wires = [record.wire for record in records]
        items, unreadable = [], []
        for request_id, record, request in zip(
            ids, records, self._requests(ids, wires), strict=True
        ):
            owned = Owned(request_id, record.attempts + 1, record.ingress_id)
            if request is None:
                unreadable.append(owned)
            else:
                # Not below zero, where Redis' clock has stepped back meanwhile.
                waited_us = max(0, now_us - record.queued_us + record.age_us)
                items.append(Claimed(owned, waited_us, request))
        if unreadable:
            reply = Reply(
                status=500,
                body=b"The request could not be read.",
                error_type="InternalServerException",
                reason="unreadable_request",
            )
            self.reply(unreadable, [reply] * len(unreadable))
        return Batch(items) if items else Nothing.EMPTY

    def read_again(self, items: Sequence[Claimed]) -> list[Claimed]:
        """Returns the requests as they were claimed: a handler may have changed their bodies.

        One that is gone stays as it is, as no client waits for it any more.
        """
        ids = [item.request_id for item in items]
        records = self._connection.call(("HMGET", self._keys.open, *ids))
        wires = [None if record is None else read_record(record).wire for record in records]
        return [
            item if request is None else replace(item, request=request)
            for item, request in zip(items, self._requests(ids, wires), strict=True)
        ]

    def _requests(self, ids: Sequence[str], wires: Iterable[bytes | None]) -> list[Request | None]:
        """Returns the requests; None for one that cannot be read.

        Args:
            ids: theirs.
            wires: their bytes; empty for those in keys of their own, None for those that are gone.
        """
        requests: list[Request | None] = []
        large: list[int] = []
        for n, (request_id, wire) in enumerate(zip(ids, wires, strict=True)):
            if wire == b"":
                large.append(n)
            requests.append(None if wire == b"" else _request(request_id, wire))
        if large:
            names = [self._keys.body_prefix + ids[n] for n in large]
            for n, body in zip(large, self._connection.fetch(names), strict=True):
                requests[n] = _request(ids[n], body)
        return requests

    def recover(self) -> int:
        """Gives back the requests of a claim whose answer was lost; returns how many.

        Only while this worker works on nothing. Without it they would stay in its lease, as it
        lives and does not know of them.
        """
        recovered: int = 0
        arguments = reclaim_arguments(self._worker_id, ReclaimMode.RECOVERED)
        while True:
            # A few hundred at once, so that no call holds Redis up for long.
            again, _, left = self._reclaim(self._recover_keys, arguments)
            recovered += again
            if left == 0:
                return recovered

    # --- reply

    def reply(
        self,
        items: Sequence[Owned],
        replies: Sequence[Reply],
        measured: Sequence[Measurement] = (),
    ) -> list[ReplyCode]:
        """Publishes each item's reply and ends its lease, once; records what was measured for them.

        After an error, what was measured may count twice (`HandlerMeasurements`).
        """
        stored = self._store_large(items, replies)
        arguments: list[str | int | bytes] = [self._worker_id, REPLY_TTL_MS]
        for item, reply in zip(items, replies, strict=True):
            name = item.request_id
            value = b"@" if name in stored else name.encode() + reply.encode()
            if item.is_of_job:
                value = (b"+" if reply.status < LOWEST_FAILURE else b"-") + value
            arguments += (name, item.attempt, item.ingress_id, value)
        if not measured:
            codes = self._connection.run("reply", self._reply_keys, arguments)
            return [_REPLY_CODES[code] for code in codes]
        # First what was measured: whoever has the answer finds it.
        calls = [*self.measurements.calls(measured), ("reply", self._reply_keys, arguments)]
        *recorded, codes = self._connection.run_all(calls)
        if isinstance(codes, ResponseError):
            raise codes
        self.measurements.note(recorded)
        return [_REPLY_CODES[code] for code in codes]

    def _store_large(self, items: Sequence[Owned], replies: Sequence[Reply]) -> set[str]:
        """Stores the replies that are too large for a script, uncopied; returns their requests."""
        large: list[str] = []
        sets = []
        for item, reply in zip(items, replies, strict=True):
            if len(reply.body) > INLINE_LIMIT_BYTES:
                # With the attempt a stale worker cannot overwrite a newer answer. Tried again, a
                # job's attempts are counted from 1 again.
                key = f"{self._keys.large_reply_prefix}{item.request_id}:{item.attempt}"
                key += f"-{self._worker_id}" if item.is_of_job else ""
                wire = reply.to_wire(item.request_id.encode())
                sets.append(packed_set(key, wire, REPLY_TTL_MS))
                large.append(item.request_id)
        if not large:
            return set()
        stored = set()
        answers = self._connection.exchange([*joined(sets)], len(large))
        for name, answer in zip(large, answers, strict=True):
            # At maxmemory the script may store what a plain SET may not: it frees the request
            # first.
            if isinstance(answer, OutOfMemoryError):
                continue
            if isinstance(answer, ResponseError):
                raise answer
            stored.add(name)
        return stored

    def send(
        self, items: Sequence[Owned], chunks: Sequence[ReplyChunk], patience_s: float
    ) -> list[ChunkCode]:
        """Sends a piece of each answer to its ingress, unless too many wait already.

        Args:
            items: as claimed.
            chunks: of at most `CHUNK_LIMIT_BYTES` each.
            patience_s: the next piece, or the reply, comes within this time.
        """
        ttl_ms = int(patience_s * 1000) + REPLY_TTL_MS
        arguments: list[str | int | bytes] = [ttl_ms, REPLY_TTL_MS, MAX_WAITING_CHUNKS]
        for item, chunk in zip(items, chunks, strict=True):
            arguments += (item.request_id, item.attempt, chunk.index, chunk.encode())
        try:
            return [ChunkCode(code) for code in self._chunk(self._chunk_keys, arguments)]
        except OutOfMemoryError:
            return [ChunkCode.FULL] * len(items)

    def note_progress(self, progress: Sequence[tuple[Owned, bytes]]) -> list[bool]:
        """Keeps how far these jobs are; returns which ones are still this worker's."""
        arguments: list[str | int | bytes] = []
        for job, value in progress:
            arguments += (job.request_id, job.attempt, value)
        return [code == 1 for code in self._progress(self._progress_keys, arguments)]

    # --- wait

    def wait_more(self, timeout_s: float) -> bool:
        """Blocks until the batch being collected is full; returns false after `timeout_s`.

        True, too, once it is interrupted, so that another worker collects. The wait ends a little
        early, so that the claim that follows has the batch by `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        wait_s = timeout_s - self._claim_lead.seconds
        is_full = self._more.wait(max(MIN_WAIT_S, wait_s))
        self._window_end = None if is_full or wait_s < MIN_WAIT_S else end
        if self._more.is_interrupted:
            # No other worker collects while this one's window lasts. If Redis is not heard, the
            # window ends when its key expires.
            with contextlib.suppress(*AWAY):
                self._client.delete(self._keys.gather)
                self.wake_one()
            return True
        return is_full

    def wait_for_work(self, timeout_s: float) -> bool:
        """Blocks until there may be work; returns false after `timeout_s`, or a little later."""
        return self._wakeups.wait(timeout_s)

    def interrupt(self) -> None:
        """Ends the waits for work and for a full batch; safe in a signal handler."""
        self._wakeups.interrupt()
        self._more.interrupt()

    def wake_one(self) -> None:
        self._wakeups.wake_one()


def _request(request_id: str, wire: bytes | bytearray | None) -> Request | None:
    if wire is None:  # its client has left, or Redis was emptied
        log.info("request=%s has no body any more", request_id)
        return None
    try:
        if isinstance(wire, bytearray):
            return Request.received(wire)
        return Request.decode(wire)
    except ProtocolError as error:
        log.error("unreadable request=%s: %s", request_id, error)
        return None
