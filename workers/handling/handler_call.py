"""One call of a model's handler, and everything that has to happen around it."""

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from ts.context import Context
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

from batching.protocol import Owned, ReplyChunk
from batching.store.worker_side.worker_queue import ChunkCode
from workers.handling.batch_stream import Send
from workers.handling.envelopes import in_envelope
from workers.handling.handlers import LoadedModel


class HandlerCall:
    """Calls the handler with the rows of a batch, one batch at a time.

    1. A timer of the kernel starts, for envelope and handler together. After `timeout_s` it ends
       the process, which needs no cooperation of a handler that hangs in C++ or holds the
       interpreter lock. Every thread's stack is written before that, and the node, which sees how
       the process ended, releases its requests.
    2. The envelope, if there is one, takes the rows apart.
    3. The handler runs. Its own time is the metric PredictionTime, as in TorchServe 0.12
       ts/service.py, Service.predict. While it sends pieces, the timer stands.
    4. The envelope puts the answers together.
    5. The timer stops, also after an error.
    6. SIGTERM stops this worker again: libraries take the signal over at their first call, and
       nothing else would end this process.
    7. `on_measured` tells that there may be metrics to report, which an idle worker never has.
    """

    def __init__(
        self,
        model: LoadedModel,
        envelope: str,
        timeout_s: float,
        send: Send,
        on_measured: Callable[[], None],
    ) -> None:
        context = model.context
        self._handler = model.entry
        self._enveloped = in_envelope(envelope, self._measured)
        self._timeout_s = timeout_s
        self._send = send
        self._on_measured = on_measured
        self._is_running = False
        self._labels = (Dimension("ModelName", context.model_name), Dimension("Level", "Model"))
        self._prediction_time = context.metrics.add_metric_to_cache(
            "PredictionTime", "ms", [label.name for label in self._labels], MetricTypes.GAUGE
        )

    def __call__(self, rows: Any, context: Context) -> Any:
        """Returns what the handler makes of the rows."""
        on_sigterm = signal.getsignal(signal.SIGTERM)
        self._is_running = True
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        try:
            return self._enveloped(rows, context)
        finally:
            self._is_running = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGTERM, on_sigterm)
            self._on_measured()

    def send(self, items: Sequence[Owned], chunks: Sequence[ReplyChunk]) -> list[ChunkCode]:
        """Sends pieces for the handler; its timer stands meanwhile and starts anew afterwards."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return self._send(items, chunks)
        finally:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
            # A thread of the handler may send on after the handler has returned, and the timer
            # would end an idle worker. Checked last, as the handler may return at any moment.
            if not self._is_running:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _measured(self, rows: Any, context: Context) -> Any:
        started_s = time.perf_counter()
        output = self._handler(rows, context)
        run_ms = round((time.perf_counter() - started_s) * 1000, 2)
        self._prediction_time.update(run_ms, "", self._labels)
        return output
