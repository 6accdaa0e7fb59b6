"""Compares two answers to one request. A difference names numbers, and never quotes texts."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# How many differences of one request are described.
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
    """Names the result of comparing two answers."""

    SAME = "same"
    STATUS = "status"
    BODY = "body"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """Holds one server's answer, its body decompressed. `failure`: why there is no answer."""

    status: int = 0
    content_type: str = ""
    body: bytes = b""
    latency_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Says how far two numbers may be apart, and which parts of a JSON body do not count.

    `ignored` are JSON paths, with `[*]` for each index: `$.time`, `$[*].id`.
    """

    relative: float = 1e-4
    absolute: float = 1e-8
    ignored: tuple[str, ...] = ()


def compare(
    old: ComparedAnswer, new: ComparedAnswer, tolerance: Tolerance
) -> tuple[Verdict, list[str]]:
    """Returns the verdict on two answers, and their first differences in words."""
    if old.failure or new.failure:
        sides = (("old", old.failure), ("new", new.failure))
        return Verdict.MISSED, [f"no {side} answer: {why}" for side, why in sides if why]
    if old.status != new.status:
        return Verdict.STATUS, [f"status: {old.status} → {new.status}"]
    old_type, new_type = (_media_type(answer.content_type) for answer in (old, new))
    differences = []
    if old_type != new_type:
        differences.append(f"content type: {old_type or 'none'} → {new_type or 'none'}")
    if old.body != new.body:
        differences += _of_bodies(old.body, new.body, tolerance)
    return (Verdict.BODY if differences else Verdict.SAME), differences[:MOST_DIFFERENCES]


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _of_bodies(old: bytes, new: bytes, tolerance: Tolerance) -> list[str]:
    # Whatever their content type: TorchServe sends JSON as text, too.
    try:
        changes = _of_values(None, json.loads(old), json.loads(new), tolerance)
        written = ((_written(path), change) for path, change in changes)
        counted = (f"{path}: {text}" for path, text in written if not _is_ignored(path, tolerance))
        return list(itertools.islice(counted, MOST_DIFFERENCES))
    except (ValueError, RecursionError):
        start = _first_other(old, new)
        return [f"body: {len(old)} → {len(new)} bytes, other from byte {start} on"]


def _of_values(path: Path, old: Any, new: Any, tolerance: Tolerance) -> Iterator[tuple[Path, str]]:
    """Yields each difference of two parsed bodies, in their order."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key in new:
                yield from _of_values((path, key), old[key], new[key], tolerance)
            else:
                yield (path, key), "only the old answer has it"
        yield from (((path, key), "only the new answer has it") for key in new if key not in old)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _of_values((path, index), *pair, tolerance)
    elif change := _change(old, new, tolerance):
        yield path, change


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
    figure = f"{value:.9g}" if isinstance(value, float) else f"{value}"
    return figure if len(figure) <= _MOST_CHARS else f"{figure[:_MOST_CHARS]}…"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return f"the number {_figure(value)}" if _is_number(value) else _KINDS[type(value)]


def _first_other(old: bytes | str, new: bytes | str) -> int:
    """Returns the first position at which the two differ, counted from 0."""
    end = min(len(old), len(new))
    blocks = range(0, end, _BLOCK)
    start = next((n for n in blocks if old[n : n + _BLOCK] != new[n : n + _BLOCK]), end)
    block_end = min(start + _BLOCK, end)
    return next((n for n in range(start, block_end) if old[n] != new[n]), block_end)


def _written(path: Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            steps.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step) and len(step) <= _MOST_CHARS:
            steps.append(f".{step}")
        else:
            short = step if len(step) <= _MOST_CHARS else f"{step[:_MOST_CHARS]}…"
            steps.append(f"[{json.dumps(short)}]")  # escaped: a terminal obeys some characters
    return "$" + "".join(reversed(steps))


def _is_ignored(path: str, tolerance: Tolerance) -> bool:
    anywhere = _INDEX.sub("[*]", path)
    return any(
        anywhere == ignored or anywhere.startswith((f"{ignored}.", f"{ignored}["))
        for ignored in tolerance.ignored
    )
