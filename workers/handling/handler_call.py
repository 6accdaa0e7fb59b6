"""Calls a model's handler, and sends what it gives out while it runs.

Source: TorchServe 0.12 docs/batch_inference_with_ts.md and its worker protocol, as an interface.
"""

import io
import json
import logging
import mmap
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import replace
from ts.context import RequestProcessor
from ts.metrics import MetricTypes, labels_of
from ts.torch_handler.open_inference import Inference
from ts.torch_handler.request_envelope import ENVELOPES

from batching.errors import InternalError, PredictionFailed
from batching.models.spec import DEFAULT_VERSION
from batching.protocol import OPEN_INFERENCE_TYPE, Claimed, Owned, Part, Reply, ReplyChunk
from batching.settings.settings import Settings
from batching.store.jobs.job_records import Progress
from batching.store.records import error_reply
from batching.store.redis_errors import AWAY, OutageLog
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, ReplyCode
from workers.handling.handlers import LoadedModel
from workers.slots.assignment import Deadline

# PredictionTime is sent with the replies of a batch. A worker that runs a thousand batches a second
# need not send it each time.
SAMPLE_S = 0.05
# Beyond `unread_timeout`, after which the ingress gives up a client that reads nothing.
STALL_MARGIN_S = 5.0
POLL_S = 0.02
PROGRESS_PAUSE_S = 0.5
BROKEN = error_reply(InternalError("The client did not take its answer in time."))
_FORK_CAME_BACK = (
    "a process that the handler forked came back from it, and was ended: end such processes by "
    "os._exit(), or start them by multiprocessing or subprocess"
)
log = logging.getLogger(__name__)


class ForkGuard:
    """Ends processes that a handler forks and that return from it.

    Such a process would go on as a second worker, with the first one's id, lease and connections.
    The worker's own process makes the guard. (`os.register_at_fork` misses native code's forks.)
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Shared with the forks, so that only the first one is logged.
        self._is_logged = mmap.mmap(-1, 1)

    def end_fork(self) -> None:
        """Ends any other process at once; must be called in a `finally` after the handler's code.

        It runs no exit handlers, which are copies of the worker's, and uses the exit code that the
        process would have had, for a handler that waits for it.
        """
        if os.getpid() == self._pid:
            return
        error = sys.exception()
        code = error.code if isinstance(error, SystemExit) else error
        try:
            if not self._is_logged[0]:
                self._is_logged[0] = True
                log.error(_FORK_CAME_BACK, exc_info=None if error is not code else error)
        finally:
            os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


class HandlerCall:
    """Calls the handler with a batch's requests, which are `items` while it runs."""

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        self.context = context = model.context
        self.items: Sequence[Claimed] = ()
        # Requests in the Open Inference Protocol, by their numbers in the batch.
        self._inferences: dict[int, Inference] = {}
        self._decodes_itself = model.decodes_itself
        envelope = None if model.decodes_itself else ENVELOPES.get(settings.service_envelope)
        self._handle = envelope(model.entry).handle if envelope else model.entry
        self._is_decoding = settings.decode_input_request
        # This envelope reads the protocol's document itself.
        self._is_open_inference = settings.service_envelope == "kservev2"
        self._guard = ForkGuard()
        self._on_sigterm: Any = None
        self._measure_at_s = 0.0
        labels = {"ModelName": context.model_name, "Level": "Model"}
        self._labels = labels_of(labels.items())
        self._prediction_time = context.own_metrics.add_metric_to_cache(
            "PredictionTime", "ms", [*labels], MetricTypes.GAUGE
        )

    def __call__(self, items: Sequence[Claimed]) -> Any:
        """Returns the handler's outputs for the requests; raises anything that it raises."""
        context = self.context
        rows = items if self._decodes_itself else self._rows(items)
        ids = {index: item.request_id for index, item in enumerate(items)}
        context.begin_batch(ids, partial(_processors, items))
        self.items = items
        self._on_sigterm = self._on_sigterm or signal.getsignal(signal.SIGTERM)
        try:
            # As in TorchServe 0.12 ts/service.py, Service.predict.
            started_s = time.perf_counter()
            outputs = self._handle(rows, context)
            ended_s = time.perf_counter()
            if ended_s >= self._measure_at_s:
                self._measure_at_s = ended_s + SAMPLE_S
                run_ms = round((ended_s - started_s) * 1000, 2)
                self._prediction_time.count(run_ms, self._labels)
            return outputs
        finally:
            self._guard.end_fork()
            self.items = ()
            # Libraries may take SIGTERM over at their first call; without it, a stop would have to
            # kill this process.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def encode(self, index: int, output: Any) -> bytes:
        """Returns the body of the answer to one request of the last batch."""
        if not self._inferences or (inference := self._inferences.get(index)) is None:
            return encode_output(output)
        model = (self.context.manifest or {}).get("model", {})
        version = str(model.get("modelVersion", DEFAULT_VERSION))
        body, headers = inference.answer(output, self.context.model_name, version)
        for name, value in headers.items():
            self.context.set_response_header(index, name, value)
        return body

    def _rows(self, items: Sequence[Claimed]) -> list[dict[str, Any]]:
        """Returns one value per part of each request; the last of equal names wins."""
        rows: list[dict[str, Any]] = []
        for item in items:
            rows.append(row := {})
            for part in item.request.parts:
                read = _reader(part.content_type, self._is_decoding)
                row[part.name] = part.content if read is None else read(part)
        self._inferences = {
            index: row["body"]
            for index, row in enumerate(rows)
            if type(row.get("body")) is Inference
        }
        for index, inference in self._inferences.items():
            is_kept = self._is_open_inference
            rows[index] = {"body": inference.with_data()} if is_kept else inference.row()
        return rows


def _processors(items: Sequence[Claimed]) -> list[RequestProcessor]:
    """Returns the headers of each request, with each part's headers under the part's name."""
    return [
        RequestProcessor(
            {part.name: {"content-type": part.content_type} for part in item.request.parts}
            | dict(item.request.headers)
        )
        for item in items
    ]


@lru_cache(maxsize=256)
def _reader(content_type: str, is_decoding: bool) -> Callable[[Part], Any] | None:
    """Returns a function that reads contents of this type; None if the handler gets the bytes."""
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == OPEN_INFERENCE_TYPE and parameters.startswith("json="):
        json_bytes = int(parameters.removeprefix("json="))
        return lambda part: Inference.read(part.content, json_bytes)
    if not is_decoding:
        return None
    if kind == "application/json":
        return partial(_decoded, json.loads, kind)
    return partial(_decoded, bytearray.decode, kind) if kind.startswith("text") else None


def _decoded(decode: Callable[[Any], Any], kind: str, part: Part) -> Any:
    try:
        return decode(part.content)
    except (ValueError, RecursionError) as error:
        template = "undecodable part=%r type=%r: the handler gets its bytes (%s)"
        log.warning(template, part.name, kind, error)
        return part.content


def encode_output(output: Any) -> bytes:
    """Returns an answer's body: bytes unchanged, text as UTF-8, tensors saved, the rest as JSON."""
    if isinstance(output, bytes | bytearray):
        return bytes(output)
    try:
        if isinstance(output, str):
            return output.encode()
        # A handler that returns a tensor has imported torch; an echo handler need not wait for it.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(output, torch.Tensor):
            buffer = io.BytesIO()
            # From the CPU, so that a client without this GPU can load it.
            torch.save(output.detach().cpu(), buffer)
            return buffer.getvalue()
        return json.dumps(output, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PredictionFailed("Unsupported model output data type.") from error


def header_texts(headers: Mapping[str, Any]) -> dict[str, str]:
    return {line_text(name): line_text(value) for name, value in headers.items()}


def line_text(value: Any) -> str:
    """Returns the value as text; refuses text that would begin another line of an HTTP head."""
    text = str(value)
    if not text.isprintable():
        raise ValueError(f"not a response header or reason phrase: {text!r}")
    return text


# --- while it runs


class StreamAbandoned(Exception):
    """No client waits for an answer of this batch any more: the handler need not go on."""


@dataclass
class BatchStream:
    """Sends the pieces of a batch's answers; keeps the pieces of jobs for their replies.

    A piece is split if it is larger than one entry of the queue may be. A client that is too slow
    makes the handler wait for a while; then its answer ends broken, and its batch goes on.
    """

    call: HandlerCall
    take: Callable[[Sequence[Owned], Sequence[ReplyChunk]], list[ReplyCode]]
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
        rows, chunks, context = list(waiting), [], self.call.context
        for row in rows:
            if index := self.counts.get(items[row].request_id, 0):
                chunks.append(ReplyChunk(index, waiting[row][0]))
                continue
            status, _ = context.get_response_status(row)
            headers = header_texts(context.get_response_headers(row))
            chunks.append(ReplyChunk(0, waiting[row][0], int(status), headers))
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
            if code in (ReplyCode.STORED, ReplyCode.STORED_BEFORE):
                self.counts[request_id] = self.counts.get(request_id, 0) + 1
                waiting[row].popleft()
            elif code is not ReplyCode.FULL:
                self.broken.add(request_id)
                waiting[row].clear()
            if not waiting[row]:
                del waiting[row]
        return any(code is not ReplyCode.FULL for code in codes)


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
    """Writes each job's latest progress, in a thread: no handler waits for Redis, or fails with it.

    Then it pauses for `pause_s`. Redis keeps no progress that comes when its job has ended.
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
