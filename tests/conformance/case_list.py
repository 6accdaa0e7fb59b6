"""The list of requests, as data: `cases/*.yaml`, in the order of their names.

A file is a list of cases; a case is one request, or several at once:

    id:       unique; the recording and the test are called so
    send:     METHOD target; `{store}` stands for the model store's path
    port:     inference (unless said otherwise), management or metrics
    headers:  a mapping
    text, json, base64, form, multipart: the body, at most one of them
    raw:      instead of send: the bytes of the request, with \\r\\n as written
    together: bodies that are sent at once, each in a request of its own
    until:    {path: value}: asked again until the JSON answer has these values
    outline:  openapi or metrics: what is kept of a long document
    differs:  where our answer is another, on purpose: `because` is a name in reasons.yaml, `ours`
              maps a place in the answer (see compare.py) to our value there, null meaning that
              there is none; the place `error` stands for an error's whole answer
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CASES = HERE / "cases"


@dataclass(frozen=True)
class Difference:
    """What is another with us in one answer, and why."""

    because: str
    ours: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One entry of the list."""

    id: str
    group: str
    send: str = ""
    port: str = "inference"
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    json: Any = None
    base64: str | None = None
    form: Mapping[str, str] | None = None
    multipart: Sequence[Mapping[str, str]] | None = None
    raw: str | None = None
    together: Sequence[str] = ()
    until: Mapping[str, Any] = field(default_factory=dict)
    outline: str = ""
    differs: Sequence[Difference] = ()

    def request(self) -> dict[str, Any]:
        """What is sent, for the recording: a case that changed needs a new recording."""
        names = ("send", "port", "headers", "text", "json", "base64", "form", "multipart")
        said = {name: getattr(self, name) for name in (*names, "raw", "together", "outline")}
        return {name: value for name, value in said.items() if value not in (None, "", {}, ())}


def load_cases() -> list[Case]:
    """All cases, in the order in which they are sent."""
    return [case for path in sorted(CASES.glob("*.yaml")) for case in _load(path)]


def load_reasons() -> dict[str, str]:
    """Why answers may differ, by name."""
    return _mapping("reasons.yaml")


def load_not_yet() -> dict[str, str]:
    """Cases that differ and should not: id to what is missing. This list only shrinks."""
    return _mapping("not_yet.yaml")


def _mapping(name: str) -> dict[str, str]:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8")) or {}


def _load(path: Path) -> list[Case]:
    group = path.stem.partition("_")[2]
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_case(dict(entry), group) for entry in entries]


def _case(entry: dict[str, Any], group: str) -> Case:
    said = entry.pop("differs", [])
    differences = said if isinstance(said, list) else [said]
    return Case(group=group, differs=[Difference(**one) for one in differences], **entry)
