"""Runs a handler over a batch and makes one reply per request, whatever happens.

TorchServe answers a whole batch with the failure of one row. Here a batch that fails is run again
item by item, so that only the request that fails it gets an error.
"""

import linecache
import logging
import math
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb
from typing import Any

from msgspec.structs import replace
from ts.torch_handler.open_inference import BadTensor
from ts.utils.util import PredictionException, has_too_many_pixels, too_many_pixels

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
from workers.handling.handler_call import (
    BROKEN,
    BatchStream,
    HandlerCall,
    StreamAbandoned,
    header_texts,
    line_text,
)
from workers.machine import ts_folder
from workers.slots.assignment import Deadline

log = logging.getLogger(__name__)

MAX_WHY_CHARS = 500
MAX_IDS = 8  # in a line of the log

QUIET_S = 10.0
# A handler that fails at more places has its tracebacks written more often.
MAX_RAISED = 64

MAX_TEXT_CHARS = 4000
MAX_LINE_CHARS = 300
LOOKED_AT = 1000  # the innermost calls
MOST_CALLS = 7  # shown of the exception, the innermost ones
CAUSE_CALLS = (2, 2)  # shown of its causes
_DIRECT = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_PACKAGES = Path(__file__).resolve().parents[2]
_OWN = tuple(f"{_PACKAGES / name}{os.sep}" for name in ("batching", "ferry", "ingress", "workers"))
_COMPATIBLE = f"{ts_folder()}{os.sep}"
_STANDARD = f"{sysconfig.get_paths()['stdlib']}{os.sep}"

_STATUSES = range(200, 600)


class FailureLog:
    """Logs tracebacks, each in full once. Keeps no exception: it would hold a batch's tensors."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        shown_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Logs whole tracebacks, or only the lines of the model's own files in `shown_dir`."""
        self._log = log
        self._shown_dir = shown_dir
        self._clock = clock
        # By the exception's class, and the file and line that raised it.
        self._written_at_s: dict[tuple[str, str, int], float] = {}

    def write(self, message: str, error: Exception) -> None:
        """Logs the message, with the traceback unless the same one was logged in QUIET_S."""
        raised = (type(error).__name__, "?", 0)
        for frame, line in walk_tb(error.__traceback__):
            raised = (raised[0], frame.f_code.co_filename, line)
        now_s = self._clock()
        if now_s - self._written_at_s.get(raised, -math.inf) < QUIET_S:
            self._log.error("%s error=%s at=%s:%d", message, *raised)
            return
        if len(self._written_at_s) >= MAX_RAISED:
            self._written_at_s.clear()
        self._written_at_s[raised] = now_s
        if self._shown_dir is not None:
            self._log.error("%s\n%s", message, user_traceback(error, self._shown_dir))
        else:
            self._log.error("%s", message, exc_info=error)


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
        self._context = self.call.context
        self._failures = FailureLog(log, shown_dir=self.shown_dir)

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
        items = batch.items
        if any(map(_is_special, items)):
            # TorchServe's handlers ask the first row's headers what the whole batch asks for.
            alike = [item for item in items if not _is_special(item)]
            together = iter(self._run_together(alike) if alike else [])
            replies = [
                self._run_together([item])[0] if _is_special(item) else next(together)
                for item in items
            ]
        else:
            replies = self._run_together(items)
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
                self._is_unbatched = True
                if not self._is_unbatched_logged:
                    self._is_unbatched_logged = True
                    log.warning(
                        "model=%s cannot be run in batches: one of %d requests failed as a whole, "
                        "and each of them succeeded alone. Clients get their answers, but each "
                        "batch like this one takes as long as its requests one by one "
                        "(ferry_unbatched_batches_total in /metrics; said once). Why: %s",
                        *(self._context.model_name, len(items), self._why_failed),
                    )
        return replies

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
        ids = [item.request_id for item in items[:MAX_IDS]] + ["..."] * (len(items) > MAX_IDS)
        return f"model={self._context.model_name} batch={len(items)} requests={','.join(ids)}"


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


def sentence(error: BaseException, most_chars: int) -> str:
    return f"{type(error).__name__}: {text_of(error)}"[:most_chars]


def user_traceback(error: BaseException, root: Path) -> str:
    """Returns the traceback's calls in files below `root` only, named relative to it.

    Leaves out calls of installed packages and of this server; if no other call is left, the
    innermost one of a library stays. Causes of the exception come first, as in Python.
    """
    # Handlers are imported from the folder as it was named, or with its links resolved.
    roots = tuple({f"{folder}{os.sep}" for folder in (root.absolute(), root.resolve())})

    def shown_name(path: str) -> str:
        """Returns a name without folders of this machine."""
        return _own_name(path, roots) or "/".join(Path(path).parts[-2:])

    part = TracebackException(
        type(error), error, error.__traceback__, limit=-LOOKED_AT, lookup_lines=False, compact=True
    )
    text = link = ""
    for most_calls in (MOST_CALLS, *CAUSE_CALLS):
        calls = [call for call in part.stack if _own_name(call.filename, roots)][-most_calls:]
        if not text and not calls:
            calls = [call for call in part.stack if _is_of_library(call.filename)][-1:]
        text = f"{_formatted(part, calls, shown_name, roots)}{link}{text}"
        link = f"\n\n{_DIRECT if part.__cause__ else _DURING}\n\n"
        cause = part.__cause__ or part.__context__
        if cause is None:
            break
        part = cause
    return text


def _formatted(
    error: TracebackException,
    calls: Sequence[FrameSummary],
    shown_name: Callable[[str], str],
    roots: Sequence[str],
) -> str:
    """Returns the calls and the exception's text; a long text is cut, not the calls."""
    named = []
    for call in calls:
        source = _cut(linecache.getline(call.filename, call.lineno or 0), MAX_LINE_CHARS)
        named.append(FrameSummary(shown_name(call.filename), call.lineno, call.name, line=source))
    head = ["Traceback (most recent call last):\n"] if calls else []
    if getattr(error, "filename", None):  # of a syntax error
        error.filename = shown_name(str(error.filename))
    text = "".join(error.format_exception_only()).rstrip("\n")
    for folder in roots:
        text = text.replace(folder, "")
    return "".join([*head, *StackSummary.from_list(named).format(), _cut(text, MAX_TEXT_CHARS)])


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"


def _own_name(path: str, roots: tuple[str, ...]) -> str:
    name = path.removeprefix(next(filter(path.startswith, roots), path))
    is_other = path.startswith((*_OWN, _COMPATIBLE, _STANDARD))
    return "" if is_other or _LIBRARY_FOLDERS.intersection(Path(name).parts) else name


def _is_of_library(path: str) -> bool:
    return path.startswith(_COMPATIBLE) or not path.startswith(("<", *_OWN))
