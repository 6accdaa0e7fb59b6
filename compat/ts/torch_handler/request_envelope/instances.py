"""Envelopes of requests that hold several instances in one JSON document.

The instances of a whole batch go to the handler in one list, and its outputs are dealt out again.
TorchServe's two KServe envelopes look at the first request only, and fail with more.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, content_of


class InstancesEnvelope(BaseEnvelope):
    """Runs the instances of all requests together."""

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
        shares = [data] if len(self._opened) <= 1 else _dealt(data, self._opened)
        return [self.close_row(share, index) for index, share in enumerate(shares)]

    @abstractmethod
    def open_row(self, row: Any) -> Any:
        """Returns the instances of one request; None if it has none."""

    @abstractmethod
    def close_row(self, outputs: Any, index: int) -> Any:
        """Returns the answer to request `index`, made of its instances' outputs."""


def document_of(row: Any) -> Any:
    """Returns the JSON of a row, which may have come as bytes or text of any content type."""
    content = content_of(row)
    return json.loads(content) if isinstance(content, (bytes, bytearray, str)) else content


def _dealt(outputs: Any, opened: Sequence[Any]) -> list[list[Any]]:
    lengths = [len(instances) for instances in opened]
    if not isinstance(outputs, list) or len(outputs) != sum(lengths):
        # An output's request is unknown then: the worker calls again with one request at a time.
        raise ValueError("the handler's outputs cannot be dealt out to the requests")
    rest = iter(outputs)
    return [[next(rest) for _ in range(length)] for length in lengths]
