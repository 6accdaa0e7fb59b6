"""The base of all envelopes.

Source: TorchServe 0.12 docs/request_envelopes.md, as an interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class BaseEnvelope(ABC):
    """Unpacks requests before a handler's entry, `handle_fn`, and packs its results afterwards."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None  # that of the batch

    def handle(self, data: Any, context: Any) -> Any:
        """Returns the answers to the rows of a batch; leaves a result as it is if it is empty."""
        self.context = context
        given = self.parse_input(data) if data else data
        results = self._handle_fn(given, context)
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Returns what the handler is given for these rows."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Returns the answers to the rows, made of the handler's results."""


def content_of(row: Any) -> Any:
    """Returns what a row carries as `data`, else as `body`."""
    # Not `or`: TorchServe's would call a tensor or an array ambiguous.
    data = row.get("data")
    return row.get("body") if data is None else data
