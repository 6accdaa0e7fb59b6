"""The worker's calls on one version's queue: claim, reply, and waiting for work."""

import contextlib
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from redis.exceptions import OutOfMemoryError

from batching.batcher import Nothing, Partial
from batching.claim_lead import ClaimLead
from batching.metrics import Measurement
from batching.models.spec import VersionKey
from batching.protocol import (
    INLINE_LIMIT_BYTES,
    Batch,
    Claimed,
    Owned,
    Reply,
    ReplyChunk,
)
from batching.store.client_types import Client
from batching.store.clients import at
from batching.store.held_connections import HeldConnection
from batching.store.keys import LEASE_TTL_MS, REPLY_TTL_MS, VersionKeys
from batching.store.measurements import HandlerMeasurements
from batching.store.node_queue import ReclaimMode, reclaim_arguments, reclaim_keys
from batching.store.redis_errors import AWAY
from batching.store.reply_writer import ReplyWriter
from batching.store.request_reader import RequestReader
from batching.store.scripts.loader import ordered_keys, script
from batching.store.waits import ParkedPop, Wakeups

MIN_WAIT_S = 0.001

JOB_PATIENCE_US = 60_000_000

# Of one answer, as much may wait for a slow client in Redis: a MiB.
CHUNK_LIMIT_BYTES = INLINE_LIMIT_BYTES
MAX_WAITING_CHUNKS = 64


class ReplyCode(IntEnum):
    """What `reply.lua` answers for one request."""

    UNWANTED = 0
    STORED = 1
    STORED_BEFORE = 2
    STALE = 3


_REPLY_CODES = tuple(ReplyCode)


class ChunkCode(IntEnum):
    """What `chunk.lua` answers for one piece."""

    UNWANTED = 0
    STORED = 1
    STORED_BEFORE = 2
    STALE = 3
    FULL = 4


class WorkerQueue:
    """The source of requests for the batcher, and the way back for replies.

    Raises redis' own errors; every call may be repeated after one.
    """

    def __init__(self, client: Client, key: VersionKey, worker_id: str, dead_after_ms: int) -> None:
        self._worker_id = worker_id
        self._dead_after_ms = dead_after_ms
        self._keys = keys = VersionKeys.of(key)
        self._client = client = at(client, keys.tag)
        self._lease = keys.lease_prefix + worker_id
        self._connection = HeldConnection(client)
        self.measurements = HandlerMeasurements(client, key)
        self._reader = RequestReader(self._connection, keys)
        self._chunk = script(client, "chunk")
        self._progress = script(client, "progress")
        self._reclaim = script(client, "reclaim")
        self._recover_keys = reclaim_keys(key, worker_id)
        self._recover_arguments = reclaim_arguments(worker_id, ReclaimMode.RECOVERED)
        self._more = ParkedPop(client, keys.more_prefix + worker_id)
        self._wakeups = Wakeups(client, keys.wakeups)
        self._claim_lead = ClaimLead()
        self._window_end: float | None = None  # by the monotonic clock; None: no claim ends one
        self._claim_keys = ordered_keys("claim", keys, lease=self._lease)
        self._replies = self._reply_writer(ordered_keys("reply", keys, lease=self._lease))
        self._chunk_keys = ordered_keys("chunk", keys, lease=self._lease)
        self._progress_keys = ordered_keys("progress", keys, lease=self._lease)

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
            self._worker_id,
            limit,
            int(patience_s * 1e6),
            self._dead_after_ms,
            LEASE_TTL_MS,
            REPLY_TTL_MS,
            JOB_PATIENCE_US,
        ]
        return self._connection.run("claim", self._claim_keys, arguments)

    def recover(self) -> int:
        """Gives back the requests of a claim whose answer was lost; returns how many.

        Only while this worker works on nothing. Without it they would stay in its lease, as it
        lives and does not know of them.
        """
        recovered: int = 0
        while True:
            # A few hundred at once, so that no call holds Redis up for long.
            again, _, left = self._reclaim(self._recover_keys, self._recover_arguments)
            recovered += again
            if left == 0:
                return recovered

    def reply(
        self,
        items: Sequence[Owned],
        replies: Sequence[Reply],
        measured: Sequence[Measurement] = (),
    ) -> list[ReplyCode]:
        """Publishes each item's reply and ends its lease, once; records what was measured for them.

        After an error, what was measured may count twice (`HandlerMeasurements`).
        """
        codes = self._replies.write(items, replies, measured)
        return [_REPLY_CODES[code] for code in codes]

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
            self._stop_collecting()
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
        """Wakes another idle worker."""
        self._wakeups.wake_one()

    def _stop_collecting(self) -> None:
        """Wakes another worker to collect."""
        # No other worker collects while this one's window lasts. If Redis is not heard, the window
        # ends when its key expires.
        with contextlib.suppress(*AWAY):
            self._client.delete(self._keys.gather)
            self.wake_one()

    def read_again(self, items: Sequence[Claimed]) -> list[Claimed]:
        """Returns the requests as they were claimed: a handler may have changed their bodies.

        One that is gone stays as it is, as no client waits for it any more.
        """
        return self._reader.read_again(items)

    def _batch(self, now_us: int, fields: Sequence[bytes]) -> Batch | Nothing:
        items, unreadable = self._reader.read(now_us, fields)
        if unreadable:
            self._refuse(unreadable)
        return Batch(items) if items else Nothing.EMPTY

    def _reply_writer(self, keys: Sequence[str]) -> ReplyWriter:
        prefix = self._keys.large_reply_prefix
        return ReplyWriter(self._connection, self._worker_id, keys, prefix, self.measurements)

    def _refuse(self, items: Sequence[Owned]) -> None:
        reply = Reply(
            status=500,
            body=b"The request could not be read.",
            error_type="InternalServerException",
            reason="unreadable_request",
        )
        self.reply(items, [reply] * len(items))
