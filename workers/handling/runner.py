"""Runs a handler over a batch and makes one reply per request, whatever happens.

TorchServe answers a whole batch with the failure of one row. Here a batch that fails is run again
item by item, so that only the request at fault fails.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from ts.torch_handler.pixel_limit import has_too_many_pixels, too_many_pixels
from ts.torch_handler.request_envelope.tensors import BadTensor
from ts.utils.util import PredictionException

from batching.errors import (
    BadRequest,
    InternalError,
    OutOfResources,
    PredictionFailed,
    ServeError,
)
from batching.models.spec import DEFAULT_VERSION
from batching.process.logs import text_of
from batching.protocol import Batch, BatchTiming, Claimed, Reply
from batching.store.records import error_reply
from ferry.modeling import Answer, BadInput
from workers.handling.batch_stream import BatchStream, StreamAbandoned
from workers.handling.failures import FailureLog, sentence, short_ids, user_traceback
from workers.handling.handler_call import HandlerCall
from workers.handling.rows import encode_output, header_texts, line_text
from workers.handling.spare_memory import free_gpu_memory
from workers.slots.deadline import Deadline

log = logging.getLogger(__name__)

ReadAgain = Callable[[Sequence[Claimed]], list[Claimed]]

MAX_WHY_CHARS = 500

_STATUSES = range(200, 600)
_BROKEN_STREAM = InternalError("The client did not take its answer in time.")


class DeviceBroken(Exception):
    """The device is lost to this process; another process may still use it."""


class Runner:
    """One loaded model, one batch at a time."""

    def __init__(
        self,
        call: HandlerCall,
        stream: BatchStream,
        deadline: Deadline,
        read_again: ReadAgain,
        most_bytes: int,
        *,
        shown_dir: Path | None = None,
    ) -> None:
        self._call = call
        self._context = call.context
        self._stream = stream
        self._deadline = deadline
        self._read_again = read_again
        self._most_bytes = most_bytes  # of an answer
        # The folder of code whose lines clients may see in tracebacks.
        self._shown_dir = shown_dir
        self._failures = FailureLog(log, shown_dir=shown_dir)
        self._why_failed = ""  # of the last batch that several items failed together
        self._is_unbatched = False  # the running batch: it failed, but not one item did alone
        self._is_told = False
        self.is_device_broken = False

    def run(self, batch: Batch) -> list[Reply]:
        """Returns one reply per item, in the same order; a handler's fault becomes an error reply.

        Calls a handler that fails over a batch of n up to n more times, with one item each. A
        request for an explanation or a description runs alone.

        Raises:
            DeviceBroken: over several items. In this process all would fail, in another one only
                the one at fault.
            RedisError, OSError: the items of a failed batch could not be read again.
        """
        started_ns = time.perf_counter_ns()
        self._is_unbatched = False
        if any(map(_is_special, batch.items)):
            replies = self._run_apart(batch.items)
        else:
            replies = self._run_together(batch.items)
        if self._stream.counts or self._stream.kept:
            replies = self._as_ends(batch.items, replies)
        self._stream.forget()
        handler_us = (time.perf_counter_ns() - started_ns) // 1000
        rest = batch.closed_by, self._is_unbatched
        return [
            replace(
                reply,
                timing=BatchTiming(len(batch), item.queue_us, handler_us, index == 0, *rest),
            )
            for index, (item, reply) in enumerate(zip(batch.items, replies, strict=True))
        ]

    def _run_together(self, items: Sequence[Claimed]) -> list[Reply]:
        replies = self._run_items(items)
        if replies is None:
            if self.is_device_broken:
                raise DeviceBroken
            free_gpu_memory()  # so that the items have room to run
            self._deadline.wait()
            # The handler may have changed the bodies, which are its own.
            again = self._read_again(items)
            replies = [reply for item in again for reply in self._run_together([item])]
            if not any(reply.error_type for reply in replies):
                self._note_unbatched(len(items))
        return replies

    def _note_unbatched(self, size: int) -> None:
        """Notes that batching is lost without anybody's fault, for the metrics; says so once."""
        self._is_unbatched = True
        if not self._is_told:
            self._is_told = True
            log.warning(
                "model=%s cannot be run in batches: one of %d requests failed as a whole, and each "
                "of them succeeded alone. Clients get their answers, but each batch like this one "
                "takes as long as its requests one by one (ferry_unbatched_batches_total in "
                "/metrics; said once). Why: %s",
                *(self._name, size, self._why_failed),
            )

    def _run_apart(self, items: Sequence[Claimed]) -> list[Reply]:
        # TorchServe's handlers ask the first row's headers what a whole batch is about.
        alike = [item for item in items if not _is_special(item)]
        replies = self._run_together(alike) if alike else []
        by_id = {item.request_id: reply for item, reply in zip(alike, replies, strict=True)}
        return [by_id.get(item.request_id) or self._run_together([item])[0] for item in items]

    def _run_items(self, items: Sequence[Claimed]) -> list[Reply] | None:
        """Returns the replies; None when several items failed together, for an unknown one's fault.

        The exception is gone by the time the items run again, and with it the tensors that its
        traceback holds.
        """
        self._deadline.run()
        try:
            outputs = self._call(items)
        except StreamAbandoned:
            log.info("abandoned model=%s batch=%d: no client is left", self._name, len(items))
            return [_error_reply(_BROKEN_STREAM)] * len(items)
        except Exception as error:
            # A handler may raise anything; the worker has to live on.
            self._failures.write(f"handler failed {self._what(items)}", error)
            self._why_failed = " ".join(sentence(error, MAX_WHY_CHARS).split())
            self.is_device_broken = self.is_device_broken or _has_broken_device(error)
            return self._all_or_none(items, self._as_answer(error))
        if not isinstance(outputs, list) or len(outputs) != len(items):
            is_list, wanted = isinstance(outputs, list), f"a list of {len(items)}, one answer each"
            shape = f"list of {len(outputs)}" if is_list else type(outputs).__name__
            log.error("handler returned %s for %s, not %s", shape, self._what(items), wanted)
            self._why_failed = f"it returned {shape}, not {wanted}"
            message = "Invalid model predict output"
            if is_list:
                message = "number of batch response mismatched"
            return self._all_or_none(items, PredictionFailed(message))
        return [
            self._reply(index, item, output)
            for index, (item, output) in enumerate(zip(items, outputs, strict=True))
        ]

    def _all_or_none(
        self, items: Sequence[Claimed], error: ServeError | PredictionException
    ) -> list[Reply] | None:
        # Pieces that were sent cannot be sent again.
        if len(items) == 1 or self._stream.counts:
            return [_error_reply(error)] * len(items)
        return None

    def _as_ends(self, items: Sequence[Claimed], replies: Sequence[Reply]) -> list[Reply]:
        """Returns the replies as the ends of answers that have been sent in pieces."""
        ends = []
        for item, reply in zip(items, replies, strict=True):
            is_broken = item.request_id in self._stream.broken
            end = _error_reply(_BROKEN_STREAM) if is_broken else reply
            if not end.error_type and (pieces := self._stream.kept.get(item.request_id)):
                end = replace(end, body=b"".join((pieces, end.body)))
            ends.append(replace(end, chunks=self._stream.counts.get(item.request_id, 0)))
        return ends

    def _encode(self, index: int, output: Any) -> bytes:
        question = self._call.questions.get(index)
        if question is None:
            return encode_output(output)
        model = (self._context.manifest or {}).get("model", {})
        version = str(model.get("modelVersion", DEFAULT_VERSION))
        body, headers = question.answer(output, self._name, version)
        for name, value in headers.items():
            self._context.set_response_header(index, name, value)
        return body

    def _reply(self, index: int, item: Claimed, output: Any) -> Reply:
        if isinstance(output, Exception):
            return _error_reply(self._as_answer(output))
        context = self._context
        try:
            if isinstance(output, Answer):
                self._check_size(output.body)
                return Reply(output.status, output.body, header_texts(output.headers))
            body = self._encode(index, output) if self._call.questions else encode_output(output)
            self._check_size(body)
            if not context.has_processors:
                return Reply(200, body)
            status, phrase = context.get_response_status(index)
            headers = context.get_response_headers(index)
            return Reply(int(status), body, header_texts(headers), line_text(phrase or ""))
        except Exception as error:
            # An output may raise anything when it is encoded; its neighbours are answered.
            self._failures.write(f"answer refused {self._what([item])} row={index}", error)
            return _error_reply(self._as_answer(error))

    def _as_answer(self, error: Exception) -> ServeError | PredictionException:
        answer = _as_answer(error)
        if self._shown_dir is None or answer is error or type(answer) is not PredictionFailed:
            return answer
        return PredictionFailed(f"{answer.message}\n{user_traceback(error, self._shown_dir)}")

    def _check_size(self, body: bytes) -> None:
        if len(body) > self._most_bytes:
            raise InternalError(
                f"The model's answer has {len(body)} bytes, more than max_response_size "
                f"({self._most_bytes})."
            )

    def _what(self, items: Sequence[Claimed]) -> str:
        return f"model={self._name} batch={len(items)} requests={short_ids(items)}"

    @property
    def _name(self) -> str:
        return self._context.model_name


def _is_special(item: Claimed) -> bool:
    headers = item.request.headers
    return headers.get("explain") == "True" or headers.get("describe") == "True"


def _as_answer(error: Exception) -> ServeError | PredictionException:
    if isinstance(error, ServeError | PredictionException):
        return error
    if isinstance(error, BadTensor | BadInput):
        return BadRequest(text_of(error))
    if has_too_many_pixels(error):
        return too_many_pixels()
    if _is_out_of_memory(error):
        return OutOfResources("Out of resources")
    return PredictionFailed("Prediction failed")


def _is_out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError):
        return True
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    # Other CUDA failures have no type of their own. Source: TorchServe 0.12 ts/service.py,
    # Service.predict answers 507 when the text of the exception has "CUDA" in it.
    return "CUDA" in text_of(error)


def _has_broken_device(error: Exception) -> bool:
    # After a failed assertion or an illegal access in a kernel, all later calls fail with the same
    # text until the process ends; after a lack of memory or a wrong argument, none does.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False
    # Another library's device: by the text.
    text = text_of(error)
    return "CUDA error:" in text and "out of memory" not in text


def _error_reply(error: ServeError | PredictionException) -> Reply:
    """Returns the answer to an error, with only the texts that are meant for the client."""
    if isinstance(error, ServeError):
        return error_reply(error)
    return Reply(
        error.error_code if error.error_code in _STATUSES else InternalError.status,
        str(error.message).encode(errors="replace"),
        error_type=PredictionFailed.type,
        reason=PredictionFailed.reason,
    )
