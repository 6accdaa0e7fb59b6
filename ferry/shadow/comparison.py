"""Compares two answers to one request. A difference names numbers, and never quotes texts."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

# Of one request, so many differences are described.
MOST_DIFFERENCES = 3
_MOST_CHARS = 60
# Bodies are compared block by block until one differs.
_BLOCK = 4096
_INDEX = re.compile(r"\[\d+\]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KINDS: Mapping[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}

# The keys that lead to a value, the innermost first.
Path = tuple["Path", str | int] | None


class Verdict(StrEnum):
    """Says what the comparison of two answers comes to."""

    SAME = "same"
    STATUS = "status"
    BODY = "body"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Answer:
    """One server's answer; its body without content encoding. `failure`: why there is none."""

    status: int = 0
    content_type: str = ""
    body: bytes = b""
    latency_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Says how far two numbers may be apart, and which parts of a JSON body may be anything.

    `ignored` are JSON paths, with `[*]` for each index: `$.time`, `$[*].id`.
    """

    relative: float = 1e-4
    absolute: float = 1e-8
    ignored: tuple[str, ...] = ()


def compare(old: Answer, new: Answer, tolerance: Tolerance) -> tuple[Verdict, list[str]]:
    """Returns what the two answers come to, and the first differences in words."""
    if old.failure or new.failure:
        sides = (("old", old.failure), ("new", new.failure))
        return Verdict.MISSED, [f"no {side} answer: {text}" for side, text in sides if text]
    if old.status != new.status:
        return Verdict.STATUS, [f"status: {old.status} → {new.status}"]
    found = list(itertools.islice(_differences(old, new, tolerance), MOST_DIFFERENCES))
    return (Verdict.BODY if found else Verdict.SAME), found


def _differences(old: Answer, new: Answer, tolerance: Tolerance) -> Iterator[str]:
    types = [_media_type(one.content_type) for one in (old, new)]
    if types[0] != types[1]:
        yield f"content type: {types[0] or 'none'} → {types[1] or 'none'}"
    if old.body == new.body:
        return
    # Whatever their content type: TorchServe sends JSON as text, too.
    try:
        bodies = _parsed(old.body), _parsed(new.body)
    except ValueError:
        sizes = f"{len(old.body)} → {len(new.body)} bytes"
        yield f"body: {sizes}, other from byte {_first_other(old.body, new.body)} on"
    else:
        yield from _of_values(*bodies, tolerance)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _parsed(body: bytes) -> Any:
    """Parses JSON, with NaN and the infinities that Python writes.

    Raises:
        ValueError: the body is something else.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("too deep") from error


def _of_values(old: Any, new: Any, tolerance: Tolerance) -> Iterator[str]:
    """Yields each difference of two parsed bodies, from the front to the back."""
    stack: list[tuple[Path, Any, Any]] = [(None, old, new)]
    while stack:
        path, one, other = stack.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            found = list(_lone_keys(path, one, other))
            inner = [((path, key), one[key], other[key]) for key in one if key in other]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            found = []
            inner = [
                ((path, index), *pair) for index, pair in enumerate(zip(one, other, strict=True))
            ]
        else:
            found, inner = [(path, text)] if (text := _change(one, other, tolerance)) else [], []
        for place, text in found:
            name = _written(place)
            if not _is_ignored(name, tolerance):
                yield f"{name}: {text}"
        stack += reversed(inner)


def _lone_keys(path: Path, old: Any, new: Any) -> Iterator[tuple[Path, str]]:
    for side, one, other in (("old", old, new), ("new", new, old)):
        for key in one:
            if key not in other:
                yield (path, key), f"only the {side} answer has it"


def _change(old: Any, new: Any, tolerance: Tolerance) -> str:
    """Describes the difference of two values; empty if they are equal."""
    if _is_number(old) and _is_number(new):
        return "" if _is_close(old, new, tolerance) else f"{_figure(old)} → {_figure(new)}"
    if type(old) is not type(new):
        return f"{_kind(old)} → {_kind(new)}"
    if old == new:
        return ""
    if isinstance(old, list):
        return f"{len(old)} → {len(new)} elements"
    if isinstance(old, str):
        first = _first_other(old, new)
        return f"{len(old)} → {len(new)} characters, other from character {first} on"
    return f"{json.dumps(old)} → {json.dumps(new)}"  # booleans


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_close(old: float, new: float, tolerance: Tolerance) -> bool:
    if isinstance(old, int) and isinstance(new, int):
        return old == new  # a class or a count
    try:
        if math.isnan(old) or math.isnan(new):
            return math.isnan(old) and math.isnan(new)
        return math.isclose(old, new, rel_tol=tolerance.relative, abs_tol=tolerance.absolute)
    except OverflowError:  # an integer that no float can hold
        return False


def _figure(value: float) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else f"{value}"
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return f"the number {_figure(value)}" if _is_number(value) else _KINDS[type(value)]


def _first_other(old: bytes | str, new: bytes | str) -> int:
    """Returns the first place at which the two differ, counted from 0."""
    blocks = range(0, min(len(old), len(new)), _BLOCK)
    start = next((n for n in blocks if old[n : n + _BLOCK] != new[n : n + _BLOCK]), len(old))
    pairs = zip(old[start : start + _BLOCK], new[start : start + _BLOCK], strict=False)
    other = next((n for n, (one, other) in enumerate(pairs, start) if one != other), None)
    return min(len(old), len(new)) if other is None else other


def _written(path: Path) -> str:
    steps: list[str | int] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return "$" + "".join(map(_step, reversed(steps)))


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.fullmatch(step) and len(step) <= _MOST_CHARS:
        return f".{step}"
    # Escaped: a terminal would obey some characters.
    return f"[{json.dumps(step if len(step) <= _MOST_CHARS else f'{step[:_MOST_CHARS]}…')}]"


def _is_ignored(name: str, tolerance: Tolerance) -> bool:
    anywhere = _INDEX.sub("[*]", name)
    return any(
        anywhere == path or anywhere.startswith((f"{path}.", f"{path}["))
        for path in tolerance.ignored
    )
