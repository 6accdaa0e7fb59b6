"""One call of a model's handler, and everything that has to happen around it."""

import logging
import mmap
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ts.context import RequestProcessor
from ts.metrics.caching_metric import labels_of
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.request_envelope import ENVELOPES

from batching.protocol import Claimed
from batching.settings.settings import Settings
from workers.handling.batch_stream import BatchStream
from workers.handling.handlers import LoadedModel
from workers.handling.rows import decode_row, request_headers
from workers.python_models.open_inference import Inference

# PredictionTime is one number, and what is measured for a batch is sent with its replies. A worker
# that runs a thousand batches a second need not send it each time.
SAMPLE_S = 0.05
_FORK_CAME_BACK = (
    "a process that the handler forked came back from it, and was ended: end such processes by "
    "os._exit(), or start them by multiprocessing or subprocess"
)
log = logging.getLogger(__name__)


class ForkGuard:
    """Ends the processes that a handler forks, when they come back from it.

    Such a process would go on as a second worker, with the first one's id, lease and connections.
    The worker's own process is the one that makes the guard; known by its id, as
    `os.register_at_fork` tells nothing of the forks of native code.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Shared with the forks, so that the log tells of the first one only.
        self._is_told = mmap.mmap(-1, 1)

    def end_fork(self) -> None:
        """Ends any other process at once; belongs behind all code of the handler, in a `finally`.

        Without its exit handlers, which are copies of the worker's; with the exit code that it
        would have had, for a handler that waits for it.
        """
        if os.getpid() == self._pid:
            return
        error = sys.exception()
        code = error.code if isinstance(error, SystemExit) else error
        try:
            if not self._is_told[0]:
                self._is_told[0] = True
                log.error(_FORK_CAME_BACK, exc_info=None if error is not code else error)
        finally:
            os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


class HandlerCall:
    """Calls the handler with the requests of a batch, one batch at a time.

    `__call__` has the steps, in order. `questions` are the requests of the last call that came in
    the Open Inference Protocol, by their numbers in the batch.
    """

    def __init__(self, model: LoadedModel, settings: Settings, stream: BatchStream) -> None:
        self.context = context = model.context
        self.questions: dict[int, Inference] = {}
        self._decodes_itself = model.decodes_itself
        envelope = None if model.decodes_itself else ENVELOPES.get(settings.service_envelope)
        self._handle = envelope(model.entry).handle if envelope else model.entry
        self._is_decoding = settings.decode_input_request
        # This envelope takes the handler's rows apart itself.
        self._is_open_inference = settings.service_envelope == "kservev2"
        self._stream = stream
        self._guard = ForkGuard()
        self._on_sigterm: Any = None
        self._measure_at_s = 0.0
        labels = {"ModelName": context.model_name, "Level": "Model"}
        self._labels = labels_of(labels.items())
        self._prediction_time = context.own_metrics.add_metric_to_cache(
            "PredictionTime", "ms", [*labels], MetricTypes.GAUGE
        )

    def __call__(self, items: Sequence[Claimed]) -> Any:
        """Returns what the handler makes of the requests; raises anything that it raises."""
        context = self.context
        rows = items if self._decodes_itself else self._rows(items)
        ids = {index: item.request_id for index, item in enumerate(items)}
        context.begin_batch(ids, partial(_processors, items))
        self._stream.begin(items)
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
            # SIGTERM stops this worker again: libraries take the signal over at their first call,
            # and nothing else would end this process.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _rows(self, items: Sequence[Claimed]) -> list[dict[str, Any]]:
        rows = [decode_row(item.request, is_decoding=self._is_decoding) for item in items]
        self.questions = {
            index: row["body"]
            for index, row in enumerate(rows)
            if type(row.get("body")) is Inference
        }
        for index, question in self.questions.items():
            is_kept = self._is_open_inference
            rows[index] = {"body": question.with_data()} if is_kept else question.row()
        return rows


def _processors(items: Sequence[Claimed]) -> list[RequestProcessor]:
    return [RequestProcessor(request_headers(item.request)) for item in items]
