"""Drives the whole list against a running server: the same for a recording and for a test."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.case_list import Case
from tests.conformance.normal_form import normal_form
from tests.conformance.wire import Answer, Target, ask

UNTIL_TIMEOUT_S = 60.0
UNTIL_POLL_S = 0.1

Seen = dict[str, list[dict[str, Any]]]


def drive(
    cases: Sequence[Case], target: Target, on_case: Callable[[Case], object] = lambda _: None
) -> Seen:
    """Returns the answers to each case, by its id, in normal form."""
    first_keys = {f"first_{name}": key for name, key in target.keys().items()}
    target = replace(target, places={**target.places, **first_keys})
    seen: Seen = {}
    for case in cases:
        on_case(case)
        answers = _ask_until(case, target)
        seen[case.id] = [normal_form(one, target.places, case.outline) for one in answers]
    return seen


def _ask_until(case: Case, target: Target) -> list[Answer]:
    give_up_at = time.monotonic() + UNTIL_TIMEOUT_S
    while True:
        answers = ask(case, target)
        if _is_there(case, answers[0]) or time.monotonic() > give_up_at:
            return answers
        time.sleep(UNTIL_POLL_S)


def _is_there(case: Case, answer: Answer) -> bool:
    has_text = case.until_text.encode() in answer.body
    return has_text and (not case.until or _holds(case.until, answer))


def _holds(wanted: Mapping[str, Any], answer: Answer) -> bool:
    try:
        document = json.loads(answer.body)
        return all(_at(document, path) == value for path, value in wanted.items())
    except (ValueError, LookupError, TypeError):
        return False


def _at(document: Any, path: str) -> Any:
    for step in path.split("."):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document
