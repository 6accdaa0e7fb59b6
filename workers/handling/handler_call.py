"""One call of a model's handler, and everything that has to happen around it."""

import signal
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
from workers.handling.fork_guard import ForkGuard
from workers.handling.handlers import LoadedModel
from workers.handling.rows import decode_row, request_headers
from workers.python_models.open_inference import Inference

# PredictionTime is one number, and what is measured for a batch is sent with its replies. A worker
# that runs a thousand batches a second need not send it each time.
SAMPLE_S = 0.05


class HandlerCall:
    """Calls the handler with the requests of a batch, one batch at a time.

    `__call__` has the steps, in order. `questions` are the requests of the last call that came in
    the Open Inference Protocol, by their places in the batch.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        stream: BatchStream,
    ) -> None:
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
        """Returns what the handler makes of the requests; raises anything that it raises.

        Raises:
            BadRequest: a body is no inference request, though its type says so.
        """
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
        """Returns a value per part of each request: bytes, text, or what was JSON."""
        rows = [decode_row(item.request, is_decoding=self._is_decoding) for item in items]
        self._open_questions(rows)
        return rows

    def _open_questions(self, rows: list[dict[str, Any]]) -> None:
        """Makes rows of those that came in the Open Inference Protocol."""
        self.questions = {
            index: row["body"]
            for index, row in enumerate(rows)
            if type(row.get("body")) is Inference
        }
        for index, question in self.questions.items():
            is_kept = self._is_open_inference
            rows[index] = {"body": question.with_data()} if is_kept else question.row()


def _processors(items: Sequence[Claimed]) -> list[RequestProcessor]:
    return [RequestProcessor(request_headers(item.request)) for item in items]
