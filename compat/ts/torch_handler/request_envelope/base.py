"""Defines the bases of all envelopes.

Source: TorchServe 0.12 docs/request_envelopes.md, as an interface.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class BaseEnvelope(ABC):
    """Unpacks requests before a handler's entry, `handle_fn`, and packs its results afterwards."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None  # of the batch

    def handle(self, data: Any, context: Any) -> Any:
        """Returns the answers to the rows of a batch; an empty result stays unchanged."""
        self.context = context
        given = self.parse_input(data) if data else data
        results = self._handle_fn(given, context)
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Returns the handler's input for these rows."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Returns the answers to the rows, from the handler's results."""


class InstancesEnvelope(BaseEnvelope):
    """Runs the instances of all requests together, and splits the outputs by request.

    TorchServe's two KServe envelopes look at the first request only, and fail with more.
    """

    _rows: Sequence[Any] = ()
    _opened: Sequence[Any] = ()  # each row's instances

    def parse_input(self, data: Any) -> Any:
        self._rows, self._opened = data, [self.open_row(row) for row in data]
        if len(data) == 1:
            return self._opened[0]
        if any(instances is None for instances in self._opened):
            # For a single request the handler is called with None, as in TorchServe.
            raise ValueError("a request without instances")
        return [instance for instances in self._opened for instance in instances]

    def format_output(self, data: Any) -> Any:
        if len(self._opened) <= 1:
            return [self.close_row(data, 0)]
        lengths = [len(instances) for instances in self._opened]
        if not isinstance(data, list) or len(data) != sum(lengths):
            # An output's request is unknown then: the worker calls again with a request at a time.
            raise ValueError("the handler's outputs cannot be dealt out to the requests")
        outputs = iter(data)
        return [
            self.close_row([next(outputs) for _ in range(length)], index)
            for index, length in enumerate(lengths)
        ]

    @abstractmethod
    def open_row(self, row: Any) -> Any:
        """Returns the instances of one request; None if it has none."""

    @abstractmethod
    def close_row(self, outputs: Any, index: int) -> Any:
        """Returns the answer to request `index`, from the outputs of its instances."""


def content_of(row: Any) -> Any:
    """Returns a row's `data`, else its `body`."""
    # Not `or`: TorchServe's would call a tensor or an array ambiguous.
    data = row.get("data")
    return row.get("body") if data is None else data


def document_of(row: Any) -> Any:
    """Returns the JSON of a row, which may have come as bytes or text of any content type."""
    content = content_of(row)
    return json.loads(content) if isinstance(content, (bytes, bytearray, str)) else content
