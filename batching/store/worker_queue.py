"""Makes the worker's calls on one version's queue: claim, reply, and waiting for work."""

import contextlib
import functools
import logging
import time
from collections.abc import Container, Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from redis.exceptions import OutOfMemoryError, ResponseError

from batching.batcher import ClaimLead, Nothing, Partial
from batching.errors import InternalError
from batching.metrics import Measurement, MetricKind, Series
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
from batching.store.arena import Arena, ArenaReader, Body, Elsewhere, mark_of
from batching.store.clients import BLOCK_S, at
from batching.store.held_connections import (
    Buffer,
    Client,
    Command,
    HeldConnection,
    drop_if_lost,
    hang_up,
    packed_set,
)
from batching.store.keys import LEASE_TTL_MS, REPLY_TTL_MS, VersionKeys
from batching.store.node_queue import AT_ONCE, ReclaimMode
from batching.store.records import BODY_ELSEWHERE, error_reply, read_record
from batching.store.redis_errors import AWAY
from batching.store.scripts.loader import command, ordered_keys, script, source

log = logging.getLogger(__name__)

MIN_WAIT_S = 0.001
LOWEST_FAILURE = 400  # of the statuses of replies
JOB_PATIENCE_US = 60_000_000

# Handlers' metrics of one version: some hundred with a few labels, or a dozen histograms of each.
MAX_FIELDS = 2000
RECORD_AT_ONCE = 500
_field_of = functools.lru_cache(maxsize=4 * MAX_FIELDS)(Series.to_field)

# At most this much of one answer waits in Redis for a slow client: a MiB in all.
CHUNK_LIMIT_BYTES = INLINE_LIMIT_BYTES
MAX_WAITING_CHUNKS = 64

MOST_UNREAD_BYTES = 4 * 1024 * 1024  # of answers in memory before their keys are looked at
LAST_READ_S = 1.0  # for the last ones, when a worker ends


class ReplyCode(IntEnum):
    """Names what `reply.lua` and `chunk.lua` answer for one request; only pieces find it FULL."""

    UNWANTED = 0
    STORED = 1
    STORED_BEFORE = 2
    STALE = 3
    FULL = 4


_REPLY_CODES = tuple(ReplyCode)  # calling the enumeration is slow

# Stands for a request whose body this worker cannot reach.
ELSEWHERE = Request({}, [])


class WorkerQueue:
    """Gives the batcher requests, and takes replies back.

    Raises redis' own errors; every call may be repeated after one.
    """

    def __init__(
        self,
        client: Client,
        key: VersionKey,
        worker_id: str,
        dead_after_ms: int,
        memory: tuple[Path, int] = (Path(), 0),  # a folder in shared memory, and how many bytes
    ) -> None:
        self._worker_id = worker_id
        self._keys = keys = VersionKeys.of(key)
        self._client = client = at(client, keys.tag)
        self._connection = HeldConnection(client)
        self._idle = HeldConnection(client)
        self._more = ParkedPop(client, keys.more_prefix + worker_id)
        self._arenas = ArenaReader(memory[0])
        self._answers = UnreadAnswers(self._connection, *memory)
        self.close = self._answers.close
        self._claim_lead = ClaimLead()
        self._window_end: float | None = None  # by the monotonic clock; None: no claim ends one
        self._has_told_of_drops = False
        lease = keys.lease_prefix + worker_id
        self._claim = command("claim", ordered_keys("claim", keys, lease), [worker_id])
        self._claim_limits = (dead_after_ms, LEASE_TTL_MS, REPLY_TTL_MS, JOB_PATIENCE_US)
        reply_keys = ordered_keys("reply", keys, lease)
        self._reply = command("reply", reply_keys, [worker_id, REPLY_TTL_MS])
        self._record = command("record", ordered_keys("record", keys), [MAX_FIELDS])
        self._recover = command(
            "reclaim",
            ordered_keys("reclaim", keys, lease),
            [worker_id, ReclaimMode.RECOVERED, 0, 0, "worker_crashed", AT_ONCE, REPLY_TTL_MS],
        )
        # Threads of the handler call these.
        self._chunk, self._progress = script(client, "chunk"), script(client, "progress")
        self._chunk_keys = ordered_keys("chunk", keys, lease)
        self._progress_keys = ordered_keys("progress", keys, lease)

    # --- claim

    def claim(self, limit: int, patience_s: float) -> Batch | Partial | Nothing:
        """Claims up to `limit` requests, unless a partial batch may wait for more."""
        call = (*self._claim, limit, int(patience_s * 1e6), *self._claim_limits)
        try:
            answer = self._connection.call(call)
        except OutOfMemoryError:
            # At maxmemory no window can be opened; taking the requests that wait frees memory.
            answer = self._connection.call((*self._claim, limit, 0, *self._claim_limits))
        window_end, self._window_end = self._window_end, None
        kind = answer[0]
        if kind == b"BATCH":
            if window_end is not None:
                self._claim_lead.observe(time.monotonic() - window_end)
            return self._batch(int(answer[1]), answer[2:])
        if kind == b"WAIT":
            return Partial(waiting=answer[1], oldest_age_s=int(answer[2]) / 1e6)
        return Nothing.BUSY if kind == b"BUSY" else Nothing.EMPTY

    def _batch(self, now_us: int, fields: Sequence[bytes]) -> Batch | Nothing:
        """Returns what was claimed at this time of Redis' clock: ids, each with its record."""
        ids = [name.decode() for name in fields[0::2]]
        records = [read_record(record) for record in fields[1::2]]
        requests = self._requests(ids, [record.wire for record in records])
        items, unreadable, elsewhere = [], [], []
        for request_id, record, request in zip(ids, records, requests, strict=True):
            owned = Owned(request_id, record.attempts + 1, record.ingress_id)
            if request is None:
                unreadable.append(owned)
            elif request is ELSEWHERE:
                elsewhere.append(owned)
            else:
                # Not below zero, where Redis' clock has stepped back meanwhile.
                waited_us = max(0, now_us - record.queued_us + record.age_us)
                items.append(Claimed(owned, waited_us, request))
        if unreadable:
            error = error_reply(InternalError("The request could not be read."))
            reply = replace(error, reason="unreadable_request")
            self.reply(unreadable, [reply] * len(unreadable))
        if elsewhere:
            # Their ingress has the bodies, and submits them again.
            arguments: list[str | int | bytes] = []
            for owned in elsewhere:
                value = owned.request_id.encode() + BODY_ELSEWHERE
                arguments += (owned.request_id, owned.attempt, owned.ingress_id, value)
            self._connection.call((*self._reply, *arguments))
        return Batch(items) if items else Nothing.EMPTY

    def read_again(self, items: Sequence[Claimed]) -> list[Claimed]:
        """Returns the requests as they were claimed: a handler may have changed their bodies.

        One that is gone stays as it is, as no client waits for it any more.
        """
        ids = [item.request_id for item in items]
        records = self._connection.call(("HMGET", self._keys.open, *ids))
        wires = [None if record is None else read_record(record).wire for record in records]
        return [
            item if request is None or request is ELSEWHERE else replace(item, request=request)
            for item, request in zip(items, self._requests(ids, wires), strict=True)
        ]

    def _requests(self, ids: Sequence[str], wires: Iterable[bytes | None]) -> list[Request | None]:
        """Returns the requests of these bytes; None for one that is gone or cannot be read.

        Those whose bytes are empty have keys of their own; bodies in memory are copied.
        """
        pairs = list(zip(ids, wires, strict=True))
        names = [self._keys.body_prefix + request_id for request_id, wire in pairs if wire == b""]
        bodies = iter(self._connection.call(("MGET", *names)) if names else ())
        return [
            self._request(request_id, next(bodies) if wire == b"" else wire)
            for request_id, wire in pairs
        ]

    def _request(self, request_id: str, wire: bytes | None) -> Request | None:
        try:
            if wire and wire[:1] != b"@":
                return Request.decode(wire)
            if wire:
                body, rest = self._arenas.copy(wire[1:], owner_has_to_live=True)
                if body is not None:
                    return Request.with_body(rest, body)
        except Elsewhere:
            return ELSEWHERE
        except ProtocolError as error:
            log.error("unreadable request=%s: %s", request_id, error)
            return None
        # Its client has left, or Redis was emptied.
        log.info("request=%s has no body any more", request_id)
        return None

    def recover(self) -> int:
        """Gives back the requests of a claim whose answer was lost; returns how many.

        Only while this worker works on nothing. Without it they would stay in its lease, as it
        lives and does not know of them.
        """
        recovered: int = 0
        while True:
            # A few hundred at once, so that no call holds Redis up for long.
            again, _, left = self._connection.call(self._recover)
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

        After an error, what was measured for counters may count twice.
        """
        placed = self._place_large(items, replies)
        arguments: list[str | int | bytes] = []
        for item, reply in zip(items, replies, strict=True):
            name = item.request_id
            value = placed.get(name) or name.encode() + reply.encode()
            if item.is_of_job:
                value = (b"+" if reply.status < LOWEST_FAILURE else b"-") + value
            arguments += (name, item.attempt, item.ingress_id, value)
        call = (*self._reply, *arguments)
        if not measured:
            return [_REPLY_CODES[code] for code in self._connection.call(call)]
        # First what was measured: whoever has the answer finds it.
        *recorded, codes = self._connection.try_all([*self._recording(measured), call])
        if isinstance(codes, ResponseError):
            raise codes
        self._note_recorded(recorded)
        return [_REPLY_CODES[code] for code in codes]

    def _place_large(self, items: Sequence[Owned], replies: Sequence[Reply]) -> dict[str, bytes]:
        """Puts the bodies that are too large for a script elsewhere; returns what says where."""
        if self._answers.is_full:
            self._answers.forget_read({self._keys.reply_prefix + item.request_id for item in items})
        large: list[str] = []
        placed: dict[str, bytes] = {}
        buffers: list[Buffer] = []
        for item, reply in zip(items, replies, strict=True):
            if len(reply.body) > INLINE_LIMIT_BYTES:
                name = self._keys.reply_prefix + item.request_id
                if place := self._answers.keep(item.ingress_id, name, reply.body):
                    short = replace(reply, body=b"")
                    placed[item.request_id] = item.request_id.encode() + place + short.encode()
                    continue
                # With the attempt a stale worker cannot overwrite a newer answer. Tried again, a
                # job's attempts are counted from 1 again.
                key = f"{self._keys.large_reply_prefix}{item.request_id}:{item.attempt}"
                key += f"-{self._worker_id}" if item.is_of_job else ""
                wire = reply.to_wire(item.request_id.encode())
                buffers += packed_set(key, wire, REPLY_TTL_MS)
                large.append(item.request_id)
        answers = self._connection.exchange(buffers, len(large)) if large else []
        for name, answer in zip(large, answers, strict=True):
            # At maxmemory the script may store what a plain SET may not: it frees the request
            # first.
            if isinstance(answer, OutOfMemoryError):
                continue
            if isinstance(answer, ResponseError):
                raise answer
            placed[name] = b"@"
        return placed

    # --- what handlers measure

    def record(self, measured: Sequence[Measurement]) -> int:
        """Adds the measurements; returns how many were dropped, as the version has too many series.

        A full Redis has them dropped.
        """
        return self._note_recorded(self._connection.try_all(self._recording(measured)))

    def prepare_to_record(self) -> None:
        """Has Redis know the script, or the first time it would run later than the reply."""
        self._connection.call(("SCRIPT", "LOAD", source("record")))

    def _recording(self, measured: Sequence[Measurement]) -> list[Command]:
        commands: list[Command] = []
        for start in range(0, len(measured), RECORD_AT_ONCE):
            arguments: list[str | float] = []
            for series, value in measured[start : start + RECORD_AT_ONCE]:
                operation = "set" if series.kind is MetricKind.GAUGE else "add"
                arguments += (operation, _field_of(series), value)
            commands.append((*self._record, *arguments))
        return commands

    def _note_recorded(self, answers: Sequence[int | ResponseError]) -> int:
        dropped = 0
        for answer in answers:
            if isinstance(answer, ResponseError):
                log.error("metrics refused: %s", answer)
            else:
                dropped += max(0, answer)
        if dropped and not self._has_told_of_drops:
            self._has_told_of_drops = True
            log.warning("the model measures too many series: %d were dropped", dropped)
        return dropped

    # --- pieces and progress

    def send(
        self, items: Sequence[Owned], chunks: Sequence[ReplyChunk], patience_s: float
    ) -> list[ReplyCode]:
        """Sends a piece of each answer to its ingress, unless too many wait already.

        Each of at most `CHUNK_LIMIT_BYTES`; the next one, or the reply, comes within `patience_s`.
        """
        ttl_ms = int(patience_s * 1000) + REPLY_TTL_MS
        arguments: list[str | int | bytes] = [ttl_ms, REPLY_TTL_MS, MAX_WAITING_CHUNKS]
        for item, chunk in zip(items, chunks, strict=True):
            arguments += (item.request_id, item.attempt, chunk.index, chunk.encode())
        try:
            return [ReplyCode(code) for code in self._chunk(self._chunk_keys, arguments)]
        except OutOfMemoryError:
            return [ReplyCode.FULL] * len(items)

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
        """Blocks until there may be work; returns false after `timeout_s`, or soon after.

        True, too, if it was interrupted, so that a token that came just then is passed on.
        """
        try:
            return self._idle.call(("BLPOP", self._keys.wakeups, timeout_s)) is not None
        except AWAY:
            if not self._idle.is_interrupted:
                raise
            return True

    def interrupt(self) -> None:
        """Ends the waits for work and for a full batch; safe in a signal handler."""
        self._idle.interrupt()
        self._more.interrupt()

    def wake_one(self) -> None:
        wakeups = self._keys.wakeups
        self._connection.try_all([("RPUSH", wakeups, "1"), ("EXPIRE", wakeups, 60)])


class UnreadAnswers:
    """Keeps large answers in memory of the worker's own until their ingresses have read them."""

    def __init__(self, connection: HeldConnection, folder: Path, size_bytes: int) -> None:
        self._connection = connection
        self._folder, self._size_bytes = folder, size_bytes
        self._mark = mark_of(folder, size_bytes)
        self._arena: Arena | None = None
        self._unread: dict[str, memoryview] = {}  # by the keys of the replies
        self._has_no_room = False

    @property
    def is_full(self) -> bool:
        """Returns whether it is time to look which ones were read."""
        unread_bytes = sum(map(len, self._unread.values()))
        return self._has_no_room or unread_bytes >= MOST_UNREAD_BYTES

    def keep(self, ingress_id: str, reply_key: str, body: Body) -> bytes | None:
        """Returns what tells the ingress where the body is; None if Redis has to carry it."""
        if not self._mark or not ingress_id.endswith(self._mark):
            return None
        if self._arena is None:
            self._arena = Arena(self._folder, self._size_bytes)
        if (sent := self._unread.get(reply_key)) is not None and sent == body:
            body = sent  # once more, and the ingress may have heard of the first time
        elif sent is not None:
            return None
        if (held := self._arena.hold(body)) is None:
            self._has_no_room = True
            return None
        self._unread[reply_key], place = held
        return b"%" + place

    def forget_read(self, sending: Container[str] = ()) -> None:
        """Frees the slots of answers that were read, as their reply keys have been deleted.

        Of those that the worker is sending, maybe once more, the keys are still to come.
        """
        self._has_no_room = False
        names = [name for name in self._unread if name not in sending]
        values = self._connection.call(("MGET", *names)) if names else ()
        for name, value in zip(names, values, strict=True):
            if value is None:
                del self._unread[name]

    def close(self) -> None:
        """Waits a moment for ingresses that still read, and removes the memory."""
        end_s = time.monotonic() + LAST_READ_S
        with contextlib.suppress(*AWAY):
            while self._unread and time.monotonic() < end_s:
                self.forget_read()
                time.sleep(MIN_WAIT_S)
        if self._arena is not None:
            self._arena.close()


class ParkedPop:
    """A blocking pop whose wait ends by the local clock, to the millisecond.

    When the wait ends early the pop stays parked on its own connection and the next wait resumes
    it. Only for lists with one reader: an element may arrive between two waits.
    """

    def __init__(self, client: Client, name: str, *, block_s: float = BLOCK_S) -> None:
        self._block_s = block_s
        self._pool: Any = client.connection_pool
        self._name = name
        self._connection: Any = None
        self._is_parked = False
        self.is_interrupted = False

    def interrupt(self) -> None:
        """Ends the wait now, and each later one at once; safe in a signal handler."""
        self.is_interrupted = True
        hang_up(self._connection)

    def wait(self, timeout_s: float) -> bool:
        """Returns true once an element was popped; false after `timeout_s` or an interruption.

        Raises:
            RedisError, OSError: an element may have been lost.
        """
        end = time.monotonic() + timeout_s
        try:
            while (left_s := end - time.monotonic()) > 0:
                if not self._is_parked:
                    self._park()
                if self.is_interrupted or not self._connection.can_read(timeout=left_s):
                    return False
                self._is_parked = False
                if self._connection.read_response() is not None:
                    return True
        except BaseException as error:
            if self._connection is not None:
                self._connection.disconnect()
                self._pool.release(self._connection)
            self._connection, self._is_parked = None, False
            if not (isinstance(error, AWAY) and self.is_interrupted):
                raise
        return False

    def _park(self) -> None:
        if self._connection is None:
            self._connection = self._pool.get_connection()
        drop_if_lost(self._connection)
        self._connection.send_command("BLPOP", self._name, self._block_s)
        self._is_parked = True
