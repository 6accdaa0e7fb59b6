"""Holds an answer of ours against the recorded one; what may differ is said case by case."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.case_list import Difference

# Headers that we add to any answer: docs/torchserve-compatibility.md, "Headers".
ADDED_HEADERS = ("server", "x-ferry-reason", "retry-after")
# Families of the metrics that we have beside TorchServe's.
ADDED_METRICS = "ferry_"
# Keys of a described worker that TorchServe does not have.
ADDED_KEYS = ("node",)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BODY = "body"
_ABSENT = object()


def differences(
    recorded: Sequence[Mapping[str, Any]],
    seen: Sequence[Mapping[str, Any]],
    allowed: Sequence[Difference],
) -> list[str]:
    """One line for each place where we answer otherwise than allowed; empty when all is well.

    A difference that is allowed and is not there is one, too: the list says what is true.
    """
    lines = [f"{len(seen)} answers, not {len(recorded)}"] if len(seen) != len(recorded) else []
    for index, (one, other) in enumerate(zip(recorded, seen, strict=False)):
        prefix = f"answer {index}: " if len(recorded) > 1 else ""
        theirs, ours = flat(one), flat(other)
        expected = dict(theirs)
        for place, value in _allowed(allowed, index if len(recorded) > 1 else None):
            if theirs.get(place, _ABSENT) == value or (value is None and place not in theirs):
                lines.append(f"{prefix}{place}: listed as different, and is not")
            _put(expected, place, value)
        lines += [prefix + line for line in _unequal(expected, ours)]
    return lines


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as places and values: `status`, `header NAME`, `body` or `body.PATH` of JSON."""
    places: dict[str, Any] = {"status": record["status"], "is_closed": record["is_closed"]}
    for name, value in record["headers"].items():
        if name not in ADDED_HEADERS:
            places[f"header {name}"] = value
    if "base64" in record:
        return places | {"base64": record["base64"]}
    text = "\n".join(record[_BODY])
    kind = places.get("header content-type")
    if kind == METRICS_TYPE:
        return places | _families(text)
    document = _json(text) if kind == "application/json" else None
    if document is None:
        return places | {_BODY: text}
    return places | {"layout": _layout(text, document)} | dict(_leaves(document, _BODY))


def _allowed(allowed: Sequence[Difference], index: int | None) -> list[tuple[str, Any]]:
    pairs = [pair for difference in allowed for pair in difference.ours.items()]
    if index is None:
        return pairs
    # In a case of several requests a place begins with the number of the answer.
    mine = f"{index} "
    return [(place.removeprefix(mine), value) for place, value in pairs if place.startswith(mine)]


def _put(places: dict[str, Any], place: str, value: Any) -> None:
    for known in [known for known in places if known == place or known.startswith(f"{place}.")]:
        del places[known]
    parent, _, key = place.rpartition(".")
    order = [name for name in places.get(f"{parent} keys", ()) if name != key or value is not None]
    if f"{parent} keys" in places:
        places[f"{parent} keys"] = order + ([key] if value is not None and key not in order else [])
    if value is not None:
        places[place] = value


def _unequal(expected: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    lines = []
    for place in dict.fromkeys([*expected, *ours]):
        wanted, found = expected.get(place), ours.get(place)
        if wanted != found or (place in expected) != (place in ours):
            lines.append(f"{place}: TorchServe {_shown(expected, place)}, we {_shown(ours, place)}")
    return lines


def _shown(places: Mapping[str, Any], place: str) -> str:
    return repr(places[place]) if place in places else "nothing"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _layout(text: str, document: Any) -> str:
    written = json.dumps(document, indent=2, ensure_ascii=False)
    if text == f"{written}\n":
        return "two spaces and a newline"
    return "two spaces" if text == written else "its own"


def _leaves(value: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        names = [key for key in value if key not in ADDED_KEYS]
        order = [(f"{place} keys", names)]
        return order + [pair for key in names for pair in _leaves(value[key], f"{place}.{key}")]
    if isinstance(value, list) and value:
        return [pair for at, one in enumerate(value) for pair in _leaves(one, f"{place}.{at}")]
    return [(place, value)]


def _families(text: str) -> dict[str, Any]:
    """`family NAME`: its lines."""
    families: dict[str, Any] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
        if not name.startswith(ADDED_METRICS):
            families.setdefault(f"family {name}", []).append(line)
    return families
