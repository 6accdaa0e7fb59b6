"""Holds what a model answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's answer; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def request_id(self) -> str:
        """Returns the id in the server's logs; a job's own id if this is its result."""
        return self.headers.get("x-request-id", "")

    @property
    def content_type(self) -> str:
        """Returns the type that the handler named, without its parameters; empty if none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """Returns the answer as text; bytes that are not UTF-8 are replaced."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Returns the answer as Python values.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.content)
