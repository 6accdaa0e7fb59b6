"""What a handler is told about its model and its batch, and where it leaves word on answers."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ts.metrics.metrics_store import MetricsStore

CONTENT_TYPE = "content-type"


class RequestHeaders(dict[str, Any]):
    """Headers that are found in any case of their names; an exact match wins.

    Where HTTP brings them in, names are in lower case, as HTTP/2 has them.
    """

    def __init__(self, headers: dict[str, Any]) -> None:
        super().__init__(headers)
        self._by_lower_name = {name.lower(): value for name, value in headers.items()}

    def __missing__(self, key: str) -> Any:
        return self._by_lower_name[key.lower()]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or str(key).lower() in self._by_lower_name

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the header, or the default without it."""
        try:
            return self[key]
        except KeyError:
            return default


class RequestProcessor:
    """The headers of one request, and the status and headers that its answer shall have."""

    def __init__(self, request_header: dict[str, Any]) -> None:
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}
        self._request_header = request_header
        self._any_case: RequestHeaders | None = None

    def get_request_property(self, key: str) -> Any:
        """A request header, None without it. An exact match wins over one in another case."""
        if key in self._request_header:
            return self._request_header[key]
        return self.get_request_properties().get(key)

    def get_request_properties(self) -> RequestHeaders:
        """Returns all request headers; they are found by their names in any case."""
        if self._any_case is None:
            self._any_case = RequestHeaders(self._request_header)
        return self._any_case

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Sets the answer's status."""
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """Returns the answer's status, 200 unless set."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """Returns the answer's reason phrase, None unless set."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Adds a header to the answer."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Returns the answer's headers as set so far."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """One of the answer's headers."""
        return self._response_header.get(key)


class Context:
    """Lives as long as the worker; `request_ids` and `request_processor` are those of the batch.

    `idx` is the row in the batch, counting from 0.
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
        self.request_processor: list[RequestProcessor] = []
        # An id for what is measured while the model loads, as there.
        self.metrics = metrics or MetricsStore(str(uuid.uuid4()), model_name)
        self.stopping_criteria: dict[int, Any] | None = None
        self.cl_socket: Any = None
        # Takes pieces, and whose they are, while the handler runs; None where nobody listens.
        self.send_pieces: Callable[[Any, Mapping[int, str]], None] | None = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"

    @property
    def _system_properties(self) -> dict[str, Any]:
        # Where TorchServe keeps it, and where some handlers look.
        return self.system_properties

    @property
    def _request_processor(self) -> list[RequestProcessor]:
        return self.request_processor

    @_request_processor.setter
    def _request_processor(self, processors: list[RequestProcessor]) -> None:
        self.request_processor = processors

    def get_request_id(self, idx: int = 0) -> str | None:
        """Returns the id of one request of the batch."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Returns a header of one request, whatever the case of its name; None without it."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> RequestHeaders:
        """Returns all headers of one request; they are found by their names in any case."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        """Returns the sequence that one request belongs to; None without one."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Sets the content type of the answer to one request."""
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Returns the content type set for one answer, None without it."""
        return self.get_response_headers(idx).get(CONTENT_TYPE)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Sets a header of the answer to one request."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Returns the headers set for one answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Sets the status of the answer to one request; its body is sent as returned."""
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Status and reason phrase of one answer; None for a phrase that was not set."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Every answer of the batch has this status."""
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)
