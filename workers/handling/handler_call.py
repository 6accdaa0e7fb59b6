"""Calls a model's handler: makes its rows, encodes its outputs, and undoes its side effects.

Source: TorchServe 0.12 docs/batch_inference_with_ts.md and its worker protocol, as an interface.
"""

import io
import json
import logging
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ts.context import RequestProcessor
from ts.metrics import MetricTypes, labels_of
from ts.torch_handler.request_envelope import ENVELOPES

from batching.errors import PredictionFailed
from batching.models.spec import DEFAULT_VERSION
from batching.protocol import OPEN_INFERENCE_TYPE, Claimed, Part
from batching.settings.settings import Settings
from workers.handling.handlers import LoadedModel
from workers.python_models.open_inference import Inference

# PredictionTime is sent with the replies of a batch. A worker that runs a thousand batches a second
# need not send it each time.
SAMPLE_S = 0.05
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
    """Calls the handler with the requests of a batch, one batch at a time.

    `__call__` has the steps, in order. `items` are the requests while the handler runs.
    """

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
