"""Runs a handler over a batch and makes one reply per request, whatever happens.

TorchServe answers a whole batch with the failure of one row. Here a batch that fails is run again
item by item, so that only the request that fails it gets an error.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from batching.process.logs import text_of
from batching.protocol import Batch, BatchTiming, Claimed, Reply
from batching.store.records import error_reply
from ferry.modeling import Answer, BadInput
from workers.handling.batch_stream import BROKEN, BatchStream, StreamAbandoned
from workers.handling.failures import FailureLog, sentence, short_ids, user_traceback
from workers.handling.handler_call import HandlerCall, header_texts, line_text
from workers.slots.assignment import Deadline

log = logging.getLogger(__name__)

MAX_WHY_CHARS = 500

_STATUSES = range(200, 600)


class DeviceBroken(Exception):
    """Says that the device is lost to this process; another process may still use it."""


@dataclass
class Runner:
    """Runs batches through one loaded model, one at a time."""

    call: HandlerCall
    stream: BatchStream
    deadline: Deadline
    read_again: Callable[[Sequence[Claimed]], list[Claimed]]
    most_bytes: int  # of an answer
    shown_dir: Path | None = None  # the folder of code whose lines clients may see in tracebacks
    is_device_broken: bool = field(default=False, init=False)
    _is_unbatched: bool = field(default=False, init=False)  # this batch fails, but no item alone
    _is_unbatched_logged: bool = field(default=False, init=False)
    # Of the last batch that several items failed together.
    _why_failed: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._failures = FailureLog(log, shown_dir=self.shown_dir)
        self._context = self.call.context

    def run(self, batch: Batch) -> list[Reply]:
        """Returns one reply per item, in the same order; a handler's fault becomes an error reply.

        Calls a handler that fails over a batch of n up to n more times, with one item each. A
        request for an explanation or a description runs alone.

        Raises:
            DeviceBroken: while several items ran. In this process all would fail now; in another
                one only the item that broke the device.
            RedisError, OSError: the items of a failed batch could not be read again.
        """
        started_ns = time.perf_counter_ns()
        self._is_unbatched = False
        if any(map(_is_special, batch.items)):
            replies = self._run_apart(batch.items)
        else:
            replies = self._run_together(batch.items)
        stream = self.stream
        if stream.counts or stream.kept or stream.broken:
            replies = stream.ends(batch.items, replies)
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
            self.stream.drop(items)
            self.deadline.wait()
            # The handler may have changed the bodies, which are its own.
            again = self.read_again(items)
            replies = [reply for item in again for reply in self._run_together([item])]
            if not any(reply.error_type for reply in replies):
                self._note_unbatched(len(items))
        return replies

    def _note_unbatched(self, size: int) -> None:
        """Counts a batch that failed although each item succeeds alone; logs the first one."""
        self._is_unbatched = True
        if not self._is_unbatched_logged:
            self._is_unbatched_logged = True
            log.warning(
                "model=%s cannot be run in batches: one of %d requests failed as a whole, and each "
                "of them succeeded alone. Clients get their answers, but each batch like this one "
                "takes as long as its requests one by one (ferry_unbatched_batches_total in "
                "/metrics; said once). Why: %s",
                *(self._context.model_name, size, self._why_failed),
            )

    def _run_apart(self, items: Sequence[Claimed]) -> list[Reply]:
        # TorchServe's handlers ask the first row's headers what the whole batch asks for.
        alike = [item for item in items if not _is_special(item)]
        replies = self._run_together(alike) if alike else []
        by_id = {item.request_id: reply for item, reply in zip(alike, replies, strict=True)}
        return [by_id.get(item.request_id) or self._run_together([item])[0] for item in items]

    def _run_items(self, items: Sequence[Claimed]) -> list[Reply] | None:
        """Returns the replies; None when several items failed together, and any may be the cause.

        It returns before the items run again, so that the exception is gone, and with it the
        tensors that its traceback holds.
        """
        self.deadline.run()
        try:
            outputs = self.call(items)
        except StreamAbandoned:
            log.info("abandoned %s: no client is left", self._what(items))
            return [BROKEN] * len(items)
        except Exception as error:
            # A handler may raise anything; the worker has to live on.
            self._failures.write(f"handler failed {self._what(items)}", error)
            self._why_failed = " ".join(sentence(error, MAX_WHY_CHARS).split())
            self.is_device_broken = self.is_device_broken or _has_broken_device(error)
            return self._all_or_none(items, self._as_reply(error))
        if not isinstance(outputs, list) or len(outputs) != len(items):
            is_list, wanted = isinstance(outputs, list), f"a list of {len(items)}, one answer each"
            shape = f"list of {len(outputs)}" if is_list else type(outputs).__name__
            log.error("handler returned %s for %s, not %s", shape, self._what(items), wanted)
            self._why_failed = f"it returned {shape}, not {wanted}"
            message = (
                "number of batch response mismatched" if is_list else "Invalid model predict output"
            )
            return self._all_or_none(items, error_reply(PredictionFailed(message)))
        return [
            self._reply(index, item, output)
            for index, (item, output) in enumerate(zip(items, outputs, strict=True))
        ]

    def _all_or_none(self, items: Sequence[Claimed], reply: Reply) -> list[Reply] | None:
        # Pieces that were sent cannot be sent again.
        is_final = len(items) == 1 or self.stream.counts
        return [reply] * len(items) if is_final else None

    def _reply(self, index: int, item: Claimed, output: Any) -> Reply:
        if isinstance(output, Exception):
            return self._as_reply(output)
        context = self._context
        try:
            if isinstance(output, Answer):
                self._check_size(output.body)
                return Reply(output.status, output.body, header_texts(output.headers))
            body = self.call.encode(index, output)
            self._check_size(body)
            if not context.has_processors:
                return Reply(200, body)
            status, phrase = context.get_response_status(index)
            headers = context.get_response_headers(index)
            return Reply(int(status), body, header_texts(headers), line_text(phrase or ""))
        except Exception as error:
            # Encoding an output may raise anything; the other items are answered.
            self._failures.write(f"answer refused {self._what([item])} row={index}", error)
            return self._as_reply(error)

    def _check_size(self, body: bytes) -> None:
        if len(body) > self.most_bytes:
            raise InternalError(
                f"The model's answer has {len(body)} bytes, more than max_response_size "
                f"({self.most_bytes})."
            )

    def _as_reply(self, error: Exception) -> Reply:
        """Returns the answer to an error, with only the texts that are meant for the client."""
        if has_too_many_pixels(error):
            error = too_many_pixels()
        if isinstance(error, PredictionException):
            is_status = error.error_code in _STATUSES
            return Reply(
                error.error_code if is_status else InternalError.status,
                str(error.message).encode(errors="replace"),
                error_type=PredictionFailed.type,
                reason=PredictionFailed.reason,
            )
        answer = _as_answer(error)
        is_unknown = answer is not error and type(answer) is PredictionFailed
        if is_unknown and self.shown_dir is not None:
            traceback = user_traceback(error, self.shown_dir)
            answer = PredictionFailed(f"{answer.message}\n{traceback}")
        return error_reply(answer)

    def _what(self, items: Sequence[Claimed]) -> str:
        name = self._context.model_name
        return f"model={name} batch={len(items)} requests={short_ids(items)}"


def _is_special(item: Claimed) -> bool:
    headers = item.request.headers
    return headers.get("explain") == "True" or headers.get("describe") == "True"


def free_gpu_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _as_answer(error: Exception) -> ServeError:
    if isinstance(error, ServeError):
        return error
    if isinstance(error, BadTensor | BadInput):
        return BadRequest(text_of(error))
    torch = sys.modules.get("torch")
    is_of_torch = torch is not None and isinstance(error, torch.OutOfMemoryError)
    # Other CUDA failures have no type of their own. Source: TorchServe 0.12 ts/service.py,
    # Service.predict answers 507 when the text of the exception has "CUDA" in it.
    if isinstance(error, MemoryError) or is_of_torch or "CUDA" in text_of(error):
        return OutOfResources("Out of resources")
    return PredictionFailed("Prediction failed")


def _has_broken_device(error: Exception) -> bool:
    # After a failed assertion or an illegal access in a kernel, all later calls fail in the same
    # way until the process ends; after a lack of memory or a wrong argument they succeed.
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
