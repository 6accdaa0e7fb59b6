"""Tells the paths of predictions from others, and finds out what they ask for.

Source: TorchServe 0.12 `InferenceRequestHandler`, `KFV1/V2InferenceRequestHandler`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ingress.torchserve.routes import OPEN_INFERENCE, PREDICTIONS, QUERY_PREDICTIONS, Asked, Route


class Target(NamedTuple):
    """What a prediction's path names and asks for; the last four are those of `Asked`."""

    model_name: str
    model_version: str | None
    explain: str | None
    url_path: str | None
    takes_query: bool = False
    is_v2: bool = False


_MAX_KEPT_CHARS = 256


def parse_prediction_path(path: str) -> Target | None:
    """Returns the target of a percent-decoded path, or None when it is not a prediction's."""
    # Clients ask for a few paths again and again. Long paths could fill the memory.
    return _known_target(path) if len(path) <= _MAX_KEPT_CHARS else _target(path)


def _target(path: str) -> Target | None:
    path = path.rstrip("/")
    for pattern, asked in _PATTERNS:
        if found := pattern.fullmatch(path):
            return None if asked is None else _filled(asked, found.groupdict())
    return None


def _filled(asked: Asked, words: Mapping[str, str]) -> Target:
    asked = asked._replace(url_path=words.get("tail", asked.url_path))
    return Target(words.get("model_name", ""), words.get("model_version") or None, *asked)


_known_target = lru_cache(maxsize=1024)(_target)


def _pattern(route: Route) -> re.Pattern[str]:
    is_native = route.asked is not None and route.asked.url_path is not None
    # TorchServe splits its own paths at each slash, and then looks for a model without a name.
    word = "[^/]*" if is_native else "[^/]+"
    path = route.path.replace("{tail}", "(?P<tail>.+)")
    return re.compile(re.sub(r"{(\w+)}", rf"(?P<\1>{word})", path), re.DOTALL)


_PATTERNS = [
    (_pattern(route), route.asked) for route in (*PREDICTIONS, *OPEN_INFERENCE, *QUERY_PREDICTIONS)
]
