"""Compares one of our answers with the recorded one; each case lists what may differ."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.conformance.case_list import Difference

# What we add to any answer: docs/torchserve-compatibility.md, "Everywhere".
ADDED_HEADERS = ("server", "x-content-type-options", "x-ferry-reason", "retry-after")
ADDED_KEYS = ("host", "isDefault", "node", "state")
ADDED_METRICS = "ferry_"

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TORCHSERVES_LAYOUT = "two spaces and a newline"

_BODY = "body"
# In an OpenAPI document the order has no meaning, and another test compares further paths and
# parameters with the code.
_DOCUMENTED = "body.paths"

Places = dict[str, Any]


def differences(
    recorded: Sequence[Mapping[str, Any]],
    seen: Sequence[Mapping[str, Any]],
    allowed: Sequence[Difference],
) -> list[str]:
    """Returns one line for each place where our answer differs and must not.

    An allowed difference that does not show is an error, too: the list must be true.
    """
    lines = [f"{len(seen)} answers, not {len(recorded)}"] if len(seen) != len(recorded) else []
    for index, (one, other) in enumerate(zip(recorded, seen, strict=False)):
        prefix = f"{index} " if len(recorded) > 1 else ""
        expected = flat(one)
        for difference in allowed:
            wanted = _changed(expected, difference, prefix)
            if not prefix and wanted == expected:
                lines.append(f"{difference.because}: is in the list, but nothing differs")
            expected = wanted
        lines += [prefix + line for line in _unequal(expected, flat(other))]
    return lines


def flat(record: Mapping[str, Any]) -> Places:
    """Returns an answer as places and values.

    `status`, `is_closed`, `header NAME`; the body as `body`, or as `body.PATH` of its JSON, or as
    `family NAME` and `sample NAME{LABELS}` of metrics.
    """
    places: Places = {"status": record["status"], "is_closed": record["is_closed"]}
    for name, value in record["headers"].items():
        if name not in ADDED_HEADERS:
            places[f"header {name}"] = value
    if "base64" in record:
        return places | {"base64": record["base64"]}
    text = "\n".join(record[_BODY])
    kind = places.get("header content-type")
    if kind == METRICS_TYPE:
        return places | dict(_metrics(text))
    document = _json(text) if kind == "application/json" else None
    if document is None:
        return places | {_BODY: text}
    return places | {"layout": _layout(text, document)} | dict(_leaves(document, _BODY))


def _changed(places: Places, difference: Difference, prefix: str) -> Places:
    changed = dict(places)
    for place, value in difference.ours.items():
        # In a case of several requests, a place begins with the number of the answer.
        if place.startswith(prefix):
            _put(changed, place.removeprefix(prefix), value)
    return changed


def _put(places: Places, place: str, value: Any) -> None:
    if place == "error":
        code = value["code"]
        places |= {"status": code, "is_closed": True, "header connection": "close"}
        places["header content-type"] = "application/json"
        place = _BODY
    for known in [known for known in places if re.match(rf"{re.escape(place)}([. ]|$)", known)]:
        del places[known]
    if place == _BODY:
        places.pop("layout", None)
        places |= {"layout": TORCHSERVES_LAYOUT} if isinstance(value, dict | list) else {}
    _note_key(places, place, is_there=value is not None)
    if value is not None:
        places |= dict(_leaves(value, place)) if place.startswith(_BODY) else {place: value}


def _note_key(places: Places, place: str, *, is_there: bool) -> None:
    parent, _, key = place.rpartition(".")
    order = places.get(f"{parent} keys")
    if order is not None and (key in order) != is_there:
        places[f"{parent} keys"] = (
            [*order, key] if is_there else [name for name in order if name != key]
        )


def _unequal(expected: Places, ours: Places) -> list[str]:
    return [
        f"{place}: wanted {_shown(expected, place)}, got {_shown(ours, place)}"
        for place in dict.fromkeys([*expected, *ours])
        if (place in expected, expected.get(place)) != (place in ours, ours.get(place))
        and (place in expected or not place.startswith(_DOCUMENTED))
    ]


def _shown(places: Places, place: str) -> str:
    return repr(places[place]) if place in places else "nothing"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _layout(text: str, document: Any) -> str:
    written = json.dumps(document, indent=2, ensure_ascii=False)
    if text == f"{written}\n":
        return TORCHSERVES_LAYOUT
    return "two spaces" if text == written else "its own"


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        names = [key for key in value if key not in ADDED_KEYS]
        if not place.startswith(_DOCUMENTED):
            yield f"{place} keys", names
        for key in names:
            yield from _leaves(value[key], f"{place}.{key}")
    elif isinstance(value, list) and value:
        for index, one in enumerate(value):
            yield from _leaves(one, f"{place}.{index}")
    else:
        yield place, value


def _metrics(text: str) -> Iterator[tuple[str, Any]]:
    for line in text.splitlines():
        if line.startswith("#"):
            _, kind, name, said = line.split(" ", 3)
            place, value = f"family {name} {kind.lower()}", said
        else:
            name, _, value = line.rpartition(" ")
            place = f"sample {name}"
        if not name.startswith(ADDED_METRICS):
            yield place, value
