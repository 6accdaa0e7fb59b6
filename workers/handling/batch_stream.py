"""Streaming: pieces of answers that a handler sends while it still runs.

A piece is split if it is larger than one entry of the queue may be. A client that is too slow makes
the handler wait for a while; then its answer ends broken, and the rest of its batch goes on.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ts.context import Context

from batching.protocol import Claimed, Owned, ReplyChunk
from batching.store.redis_errors import AWAY, OutageLog
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, ChunkCode
from workers.handling.job_reporter import JobReporter
from workers.handling.rows import encode_output, header_texts
from workers.slots.deadline import Deadline

log = logging.getLogger(__name__)

# Beyond `unread_timeout`, after which the ingress gives up a client that reads nothing.
STALL_MARGIN_S = 5.0
POLL_S = 0.02

Send = Callable[[Sequence[Owned], Sequence[ReplyChunk]], list[ChunkCode]]


class StreamAbandoned(Exception):
    """No client waits for an answer of this batch any more: the handler need not go on."""


class BatchStream:
    """Sends the pieces of one batch at a time.

    `counts` has the number of pieces of each request's answer; `broken` the ids of requests whose
    answer lacks a piece, or whose client has left. Those of jobs are `kept` until the end.
    """

    def __init__(
        self,
        context: Context,
        send: Send | None,
        deadline: Deadline,
        outage: OutageLog | None = None,
        reporter: JobReporter | None = None,
        *,
        stall_s: float,
    ) -> None:
        self.counts: dict[str, int] = {}
        self.kept: dict[str, bytearray] = {}
        self.broken: set[str] = set()
        self._context = context
        self._send = send
        self._deadline = deadline
        self._outage = outage or OutageLog(log)
        self._stall_s = stall_s
        self._reporter = reporter or JobReporter(None)
        self._items: Sequence[Claimed] = ()
        self._sending = threading.Lock()
        self._pid = os.getpid()
        if send is not None:
            context.send_pieces = self.send
        if reporter is not None:
            context.keep_progress = reporter.note_progress

    def begin(self, items: Sequence[Claimed]) -> None:
        """Takes pieces for these requests from now on."""
        self._items = items
        self._reporter.begin(items)
        for item in items:
            self.kept.pop(item.request_id, None)  # of a run that failed

    def forget(self) -> None:
        self._items = ()
        self.counts.clear()
        self.kept.clear()
        self.broken.clear()
        self._reporter.forget()

    def send(self, outputs: Any, request_ids: Mapping[int, str]) -> None:
        """Sends these clients the next piece of their answers; blocks while one cannot take it.

        Threads of the handler may call it at the same time; each waits for the ones before it.

        Args:
            outputs: the pieces, by number.
            request_ids: the ids of their requests, by the same numbers; a part of the batch may do.

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
            # Kept: a thread that outlives its batch must not send to clients of the next one.
            items = self._items
            if not items:
                raise RuntimeError("The batch has been answered: no piece can follow.")
            self._send_all(items, _by_row(items, outputs, request_ids))

    def _send_all(self, items: Sequence[Claimed], outputs: Mapping[int, Any]) -> None:
        for row, output in outputs.items():
            if items[row].owned.is_of_job:
                self._keep(items[row], encode_output(output))
        waiting = {
            row: pieces
            for row, output in outputs.items()
            if items[row].request_id not in self.broken
            and not items[row].owned.is_of_job
            and (pieces := self._pieces(items[row], encode_output(output)))
        }
        last_progress_s = time.monotonic()
        while waiting:
            if self._advance(items, waiting):
                last_progress_s = time.monotonic()
            elif time.monotonic() - last_progress_s > self._stall_s:
                log.warning("clients too slow, or Redis away, answers broken: %d", len(waiting))
                self.broken |= {items[row].request_id for row in waiting}
                break
            else:
                time.sleep(POLL_S)
        if all(item.request_id in self.broken for item in items):
            raise StreamAbandoned

    def _keep(self, item: Claimed, body: bytes) -> None:
        self.kept.setdefault(item.request_id, bytearray()).extend(body)
        self._deadline.resume()  # anew, as after a piece that is sent

    def _pieces(self, item: Claimed, body: bytes) -> "deque[bytes]":
        if not body and self.counts.get(item.request_id):
            return deque()
        # The first one goes even if it is empty: it brings status and headers.
        return deque(_split(body))

    def _advance(self, items: Sequence[Claimed], waiting: "dict[int, deque[bytes]]") -> bool:
        """Sends the next piece of each row; returns whether one was taken or will never be."""
        rows = list(waiting)
        chunks = [self._chunk(row, items[row], waiting[row][0]) for row in rows]
        self._deadline.pause()
        try:
            assert self._send is not None
            codes = self._send([items[row].owned for row in rows], chunks)
        except AWAY as error:
            self._outage.note("send", error)
            return False
        finally:
            self._deadline.resume()
        self._outage.over("send")
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
        index = self.counts.get(item.request_id, 0)
        if index:
            return ReplyChunk(index, body)
        status, _ = self._context.get_response_status(row)
        headers = header_texts(self._context.get_response_headers(row))
        return ReplyChunk(0, body, int(status), headers)


def _split(body: bytes) -> list[bytes]:
    size = CHUNK_LIMIT_BYTES
    return [body[start : start + size] for start in range(0, len(body) or 1, size)]


def _by_row(
    items: Sequence[Claimed], outputs: Any, request_ids: Mapping[int, str]
) -> dict[int, Any]:
    rows = {item.request_id: row for row, item in enumerate(items)}
    try:
        # Indexing would take a text apart into its letters.
        pieces = {} if isinstance(outputs, str | bytes | bytearray) else outputs
        return {rows[one]: pieces[number] for number, one in request_ids.items()}
    except (LookupError, TypeError) as error:
        raise ValueError(
            f"A piece for each of the {len(request_ids)} requests is needed, as a list or by "
            "number, and only requests of this batch have one."
        ) from error
