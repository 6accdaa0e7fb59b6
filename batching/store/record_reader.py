"""Reads records that others have written: what nobody can read costs only itself."""

import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# What parsing raises at text that is none of ours, or of a version that is to come.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class RecordReader(Generic[T]):
    """Reads all records of one kind; each that cannot be read is passed over, and told of once."""

    def __init__(self, kind: str, parse: Callable[[bytes], T]) -> None:
        self._kind = kind
        self._parse = parse
        self._told: dict[bytes, bytes] = {}

    def read(self, records: Mapping[bytes, bytes]) -> dict[str, T]:
        """By name, those that can be read."""
        found: dict[str, T] = {}
        for name, text in records.items():
            try:
                found[name.decode()] = self._parse(text)
            except UNREADABLE as error:
                if self._told.get(name) != text:
                    self._told[name] = text
                    log.error("unreadable record %s=%r: %r", self._kind, name, error)
        return found
