"""Reads records that others have written; an unreadable one costs only itself."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# Parsing raises these at text that is not ours, or of a later version.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def ids_of(members: Iterable[bytes]) -> list[str]:
    """Returns the members of a set of beats that can be names of nodes or workers."""
    return [member.decode() for member in members if member.isascii()]


class RecordReader(Generic[T]):
    """Reads the records of one kind; an unreadable one is logged once."""

    def __init__(self, kind: str, parse: Callable[[bytes], T]) -> None:
        self._kind = kind
        self._parse = parse
        self._told: dict[bytes, bytes] = {}

    def read(
        self, records: Mapping[bytes, bytes], former: Mapping[str, T] | None = None
    ) -> dict[str, T]:
        """Returns the records by name; takes an unreadable one from `former`, or leaves it out."""
        found: dict[str, T] = {}
        for name, text in records.items():
            try:
                found[name.decode()] = self._parse(text)
            except UNREADABLE as error:
                self._tell(name, text, error)
                known_as = name.decode(errors="replace")
                if former is not None and known_as in former:
                    found[known_as] = former[known_as]
        return found

    def _tell(self, name: bytes, text: bytes, error: Exception) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            told_as = name.decode(errors="backslashreplace")
            log.error("unreadable record %s=%s: %r", self._kind, told_as, error)
