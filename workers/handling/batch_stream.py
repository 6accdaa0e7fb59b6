"""Sends what a handler gives out while it runs: pieces of answers, and the progress of jobs.

A piece is split if it is larger than one entry of the queue may be. A client that is too slow makes
the handler wait for a while; then its answer ends broken, and the rest of its batch goes on.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from batching.errors import InternalError
from batching.protocol import Claimed, Owned, Reply, ReplyChunk
from batching.store.jobs.job_records import Progress
from batching.store.records import error_reply
from batching.store.redis_errors import AWAY, OutageLog
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, ChunkCode
from workers.handling.handler_call import HandlerCall, encode_output, header_texts
from workers.slots.assignment import Deadline

log = logging.getLogger(__name__)

# Beyond `unread_timeout`, after which the ingress gives up a client that reads nothing.
STALL_MARGIN_S = 5.0
POLL_S = 0.02
PROGRESS_PAUSE_S = 0.5
BROKEN = error_reply(InternalError("The client did not take its answer in time."))


class StreamAbandoned(Exception):
    """No client waits for an answer of this batch any more: the handler need not go on."""


@dataclass
class BatchStream:
    """Sends the pieces of a batch's answers; keeps the pieces of jobs for their replies."""

    call: HandlerCall
    take: Callable[[Sequence[Owned], Sequence[ReplyChunk]], list[ChunkCode]]
    deadline: Deadline
    outage: OutageLog
    stall_s: float
    counts: dict[str, int] = field(default_factory=dict)  # pieces that were sent, by request
    kept: dict[str, bytearray] = field(default_factory=dict)
    # Requests that lack a piece, or whose client has left.
    broken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._sending = threading.Lock()
        self._pid = os.getpid()
        self.call.context.send_pieces = self.send

    def drop(self, items: Sequence[Claimed]) -> None:
        """Drops the pieces of jobs from a run that failed."""
        for item in items:
            self.kept.pop(item.request_id, None)

    def ends(self, items: Sequence[Claimed], replies: Sequence[Reply]) -> list[Reply]:
        """Returns the replies as the ends of answers that were sent in pieces, and starts over."""
        ends = []
        for item, reply in zip(items, replies, strict=True):
            end = BROKEN if item.request_id in self.broken else reply
            if not end.error_type and (pieces := self.kept.get(item.request_id)):
                end = replace(end, body=b"".join((pieces, end.body)))
            ends.append(replace(end, chunks=self.counts.get(item.request_id, 0)))
        self.counts.clear()
        self.kept.clear()
        self.broken.clear()
        return ends

    def send(self, outputs: Any, request_ids: Mapping[int, str]) -> None:
        """Sends the next piece to the clients of these requests; blocks while one cannot take it.

        `request_ids` has the numbers of `outputs` as keys, for all of the batch or some. Threads of
        the handler may call it at the same time; they take turns.

        Raises:
            ValueError: a piece is missing, or a request is not of this batch.
            StreamAbandoned: no client waits any more.
            RuntimeError: the handler has returned already, or this is another process.
        """
        # Before the lock, which a thread of the worker may have held when this process was forked.
        if os.getpid() != self._pid:
            raise RuntimeError(
                "A process that the handler started cannot send pieces: have it give them to the "
                "worker's own process."
            )
        with self._sending:
            # Read once: a thread that outlives its batch must not send to clients of the next one.
            items = self.call.items
            if not items:
                raise RuntimeError("The batch has been answered: no piece can follow.")
            self._send_all(items, _by_row(items, outputs, request_ids))

    def _send_all(self, items: Sequence[Claimed], outputs: Mapping[int, Any]) -> None:
        waiting: dict[int, deque[bytes]] = {}
        for row, output in outputs.items():
            request_id, body = items[row].request_id, encode_output(output)
            if items[row].owned.is_of_job:
                self.kept.setdefault(request_id, bytearray()).extend(body)
                self.deadline.resume()  # as after a piece that is sent
            # The first piece is sent even if it is empty: it brings status and headers.
            elif request_id not in self.broken and (body or not self.counts.get(request_id)):
                starts = range(0, len(body) or 1, CHUNK_LIMIT_BYTES)
                waiting[row] = deque(body[start : start + CHUNK_LIMIT_BYTES] for start in starts)
        last_progress_s = time.monotonic()
        while waiting:
            if self._advance(items, waiting):
                last_progress_s = time.monotonic()
            elif time.monotonic() - last_progress_s > self.stall_s:
                log.warning("clients too slow, or Redis away, answers broken: %d", len(waiting))
                self.broken |= {items[row].request_id for row in waiting}
                break
            else:
                time.sleep(POLL_S)
        if all(item.request_id in self.broken for item in items):
            raise StreamAbandoned

    def _advance(self, items: Sequence[Claimed], waiting: "dict[int, deque[bytes]]") -> bool:
        """Sends the next piece of each row; returns whether any was taken, or never will be."""
        rows = list(waiting)
        chunks = [self._chunk(row, items[row], waiting[row][0]) for row in rows]
        self.deadline.pause()
        try:
            codes = self.take([items[row].owned for row in rows], chunks)
        except AWAY as error:
            self.outage.note("send", error)
            return False
        finally:
            self.deadline.resume()
        self.outage.over("send")
        for row, code in zip(rows, codes, strict=True):
            request_id = items[row].request_id
            if code in (ChunkCode.STORED, ChunkCode.STORED_BEFORE):
                self.counts[request_id] = self.counts.get(request_id, 0) + 1
                waiting[row].popleft()
            elif code is not ChunkCode.FULL:
                self.broken.add(request_id)
                waiting[row].clear()
            if not waiting[row]:
                del waiting[row]
        return any(code is not ChunkCode.FULL for code in codes)

    def _chunk(self, row: int, item: Claimed, body: bytes) -> ReplyChunk:
        if index := self.counts.get(item.request_id, 0):
            return ReplyChunk(index, body)
        context = self.call.context
        status, _ = context.get_response_status(row)
        return ReplyChunk(0, body, int(status), header_texts(context.get_response_headers(row)))


def _by_row(
    items: Sequence[Claimed], outputs: Any, request_ids: Mapping[int, str]
) -> dict[int, Any]:
    rows = {item.request_id: row for row, item in enumerate(items)}
    try:
        # Indexing would split a text into its letters.
        pieces = {} if isinstance(outputs, str | bytes | bytearray) else outputs
        return {rows[request_id]: pieces[number] for number, request_id in request_ids.items()}
    except (LookupError, TypeError) as error:
        raise ValueError(
            f"A piece for each of the {len(request_ids)} requests is needed, as a list or by "
            "number, and only requests of this batch have one."
        ) from error


@dataclass
class JobReporter:
    """Writes the latest progress of each job, then pauses for `pause_s`.

    It has a thread, so that no handler waits for Redis, or fails with it. Redis does not keep
    progress that comes when its job has ended.
    """

    call: HandlerCall
    write: Callable[[Sequence[tuple[Owned, bytes]]], object]
    outage: OutageLog
    pause_s: float = PROGRESS_PAUSE_S
    _unwritten: dict[str, tuple[Owned, bytes]] = field(default_factory=dict, init=False)  # by id
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._has_news = threading.Condition()
        self._pid = os.getpid()

    def note(self, share: float, text: str, request_ids: Collection[str]) -> None:
        """Notes how far these requests are, if they are jobs of the batch."""
        jobs = [
            item.owned
            for item in self.call.items
            if item.owned.is_of_job and item.request_id in request_ids
        ]
        # A process that the handler has forked lacks the thread, and may have its lock, held.
        if not jobs or os.getpid() != self._pid:
            return
        value = Progress(share, text).encode()
        with self._has_news:
            self._unwritten |= {job.request_id: (job, value) for job in jobs}
            self._has_news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job progress", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._has_news:
                self._has_news.wait_for(lambda: self._unwritten)
                progress, self._unwritten = self._unwritten, {}
            try:
                self.write([*progress.values()])
                self.outage.over("progress")
            except AWAY as error:
                self.outage.note("progress", error)
                with self._has_news:
                    self._unwritten = progress | self._unwritten
            time.sleep(self.pause_s)
