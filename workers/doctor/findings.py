"""What an examination finds."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """A problem keeps the model from running as it is meant to; a note should be read."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one part of the archive; a problem says what to do."""

    part: str
    verdict: Verdict
    text: str


def ok(part: str, text: str) -> Finding:
    """Returns a finding that needs no action."""
    return Finding(part, Verdict.OK, text)


def note(part: str, text: str) -> Finding:
    """Returns a finding about a model that runs, but perhaps not as its author thinks."""
    return Finding(part, Verdict.NOTE, text)


def problem(part: str, text: str) -> Finding:
    """Returns a finding that keeps the model from running."""
    return Finding(part, Verdict.PROBLEM, text)
