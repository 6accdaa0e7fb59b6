"""Loads the list of requests, which is data: `cases/SCENE/*.yaml`, in the order of their names.

A scene is one server, from its start with `cases/SCENE/config.properties` to its end, with all that
was registered in between. A file is a list of cases; a case is one request, or several at once:

    id:       unique; the name of the recording and of the test
    send:     METHOD target; `{store}` stands for the model store's path
    port:     inference (the default), management or metrics
    headers:  a mapping; `{inference_key}`, `{management_key}` and `{API_key}` are keys of the
              current key file, `{first_...}` of the first one
    text, json, base64, form, multipart: the body, at most one of them
    raw:      instead of send: the bytes of the request, with \\r\\n as written
    together: bodies that are sent at once, each in a request of its own
    until:    {path: value}: asked again until the JSON answer has these values
    until_text: asked again until the answer contains this
    outline:  openapi or metrics: only the outline of a long document is kept
    differs:  where our answer differs on purpose: `because` is a name in reasons.yaml, `ours`
              maps a place in the answer (see compare.py) to our value there, or to null if we have
              none; the place `error` stands for an error's whole answer
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
    """The places where one of our answers differs on purpose, and the reason."""

    because: str
    ours: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One entry of the list."""

    id: str
    scene: str
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
    until_text: str = ""
    outline: str = ""
    differs: Sequence[Difference] = ()

    def request(self) -> dict[str, Any]:
        """Returns the request as recorded: a case that changed needs a new recording."""
        names = ("send", "port", "headers", "text", "json", "base64", "form", "multipart")
        said = {name: getattr(self, name) for name in (*names, "raw", "together", "outline")}
        return {name: value for name, value in said.items() if value not in (None, "", {}, ())}


def load_scenes() -> dict[str, list[Case]]:
    """Returns the cases of each scene, in the order in which they are sent."""
    scenes: dict[str, list[Case]] = {}
    for path in sorted(CASES.glob("*/*.yaml")):
        scenes.setdefault(path.parent.name, []).extend(_load(path))
    return scenes


def properties_of(scene: str) -> str:
    """Returns the scene's config.properties for both servers, without addresses and model store."""
    return (CASES / scene / "config.properties").read_text(encoding="utf-8")


def load_reasons() -> dict[str, str]:
    """Returns the reasons for which answers may differ, by name."""
    return yaml.safe_load((HERE / "reasons.yaml").read_text(encoding="utf-8"))


def _load(path: Path) -> list[Case]:
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_case(dict(entry), path) for entry in entries]


def _case(entry: dict[str, Any], path: Path) -> Case:
    said = entry.pop("differs", [])
    return Case(
        scene=path.parent.name,
        group=path.stem.partition("_")[2],
        differs=[Difference(**one) for one in (said if isinstance(said, list) else [said])],
        **entry,
    )
