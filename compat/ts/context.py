"""Tells a handler about its model and its batch, and takes the status and headers of answers."""

import math
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ts.metrics import MetricsStore

CONTENT_TYPE = "content-type"
# How far beyond 0 and 1 rounding may take a share.
ROUNDING = 1e-6


class RequestHeaders(dict[str, Any]):
    """Keeps headers as the client spelled them, and finds them in any case; an exact match wins."""

    def _kept(self, key: Any) -> Any:
        """Returns the spelling under which the header is kept; `key` itself if there is none."""
        if super().__contains__(key) or not isinstance(key, str):
            return key
        lower = key.lower()
        return next((name for name in reversed(self) if name.lower() == lower), key)

    def __missing__(self, key: str) -> Any:
        if (name := self._kept(key)) is key:
            raise KeyError(key)
        return self[name]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._kept(key))

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(self._kept(key), default)

    def copy(self) -> "RequestHeaders":
        return RequestHeaders(self)


class RequestProcessor:
    def __init__(self, request_header: dict[str, Any]) -> None:
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}
        self._request_header = RequestHeaders(request_header)

    def get_request_property(self, key: str) -> Any:
        return self._request_header.get(key)

    def get_request_properties(self) -> dict[str, Any]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)


class _Processors:
    """Makes a batch's request processors when first asked; copies of a context share them."""

    making = threading.Lock()  # the handler may ask in several threads

    def __init__(
        self, make: Callable[[], list[RequestProcessor]], made: list[RequestProcessor] | None = None
    ) -> None:
        self.make = make
        self.made = made


class Context:
    """Lives as long as the worker; `request_ids` and `request_processor` belong to the batch.

    These and `metrics` are set again for each batch, whatever a handler has put there: the worker's
    metrics are kept as `own_metrics`. `idx` is the row in the batch, counting from 0.
    """

    def __init__(  # noqa: PLR0917 - TorchServe's order
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: MetricsStore | None = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.model_yaml_config = model_yaml_config or {}
        self.request_ids: dict[int, str] = {}
        self._processors = _Processors(list)
        # While the model loads, there is one id, as in TorchServe.
        self.metrics = self.own_metrics = metrics or MetricsStore(str(uuid.uuid4()), model_name)
        self.stopping_criteria: dict[int, Any] | None = None
        self.cl_socket: Any = None
        # In a worker, sends pieces of answers to their requests while the handler runs.
        self.send_pieces: Callable[[Any, Mapping[int, str]], None] | None = None
        # In a worker, keeps the progress of these requests.
        self.keep_progress: Callable[[float, str, Collection[str]], None] | None = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"

    @property
    def _system_properties(self) -> dict[str, Any]:
        # Where TorchServe keeps it, and where some handlers look.
        return self.system_properties

    def begin_batch(
        self, request_ids: dict[int, str], make_processors: Callable[[], list[RequestProcessor]]
    ) -> None:
        """Makes these the requests of the batch.

        `make_processors` is called when the handler first asks for a header, or sets a status or
        header, which most handlers never do.
        """
        self.metrics = self.own_metrics
        self.request_ids = self.metrics.request_ids = request_ids
        self._processors = _Processors(make_processors)

    @property
    def has_processors(self) -> bool:
        return self._processors.made is not None

    @property
    def request_processor(self) -> list[RequestProcessor]:
        processors = self._processors
        with processors.making:
            if processors.made is None:
                processors.made = processors.make()
            return processors.made

    @request_processor.setter
    def request_processor(self, processors: list[RequestProcessor]) -> None:
        self._processors = _Processors(list, processors)

    # Where TorchServe keeps them.
    _request_processor = request_processor

    def get_request_id(self, idx: int = 0) -> str | None:
        return self.request_ids.get(idx)

    def report_progress(self, share: float, text: str = "", index: int | None = None) -> None:
        """Tells clients that ask for a job how far it is; does nothing for other requests.

        Never waits: twice a second, the latest call is kept. TorchServe has no such call.

        Args:
            share: from 0 to 1.
            text: for people; cut after 200 characters.
            index: of one request in the batch; None: all of them.

        Raises:
            ValueError: `share` is none.
            IndexError: the batch has no such request.
        """
        try:
            number = float(share)
        except (TypeError, ValueError):
            number = math.nan
        if not -ROUNDING <= number <= 1 + ROUNDING:
            raise ValueError(f"Progress is a share from 0 to 1, not {share!r}.")
        if index is not None and index not in self.request_ids:
            raise IndexError(f"The batch has no request {index!r}, only {len(self.request_ids)}.")
        if self.keep_progress is not None:
            ids = self.request_ids.values() if index is None else (self.request_ids[index],)
            self.keep_progress(min(1.0, max(0.0, number)), str(text), ids)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Returns a header, by its name in any case; an exact match wins; None without it."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        return self.get_response_headers(idx).get(CONTENT_TYPE)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Sets the status of the answer to one request; its body is sent as returned."""
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)
