"""Tells the paths of predictions from others, and finds out what they ask for.

Source: TorchServe 0.12 `InferenceRequestHandler`, `KFV1/V2InferenceRequestHandler`.
"""

import re
from functools import lru_cache

from ingress.torchserve.route import Route, Target
from ingress.torchserve.routes import OPEN_INFERENCE, PREDICTIONS, QUERY_PREDICTIONS

_MAX_KEPT_CHARS = 256


def parse_prediction_path(path: str) -> Target | None:
    """Returns the target of a percent-decoded path, or None when it is not a prediction's."""
    # Clients ask for a few paths again and again. Long paths could fill the memory.
    return _known_target(path) if len(path) <= _MAX_KEPT_CHARS else _target(path)


def _target(path: str) -> Target | None:
    path = path.rstrip("/")
    for pattern, target in _PATTERNS:
        if found := pattern.fullmatch(path):
            words = found.groupdict()
            return target and target._replace(
                model_name=words.get("model_name", ""),
                model_version=words.get("model_version") or None,
                url_path=words.get("tail", target.url_path),
            )
    return None


_known_target = lru_cache(maxsize=1024)(_target)


def _pattern(route: Route) -> re.Pattern[str]:
    is_native = route.target is not None and route.target.url_path is not None
    # TorchServe splits its own paths at each slash, and then looks for a model without a name.
    word = "[^/]*" if is_native else "[^/]+"
    path = route.path.replace("{tail}", "(?P<tail>.+)")
    return re.compile(re.sub(r"{(\w+)}", rf"(?P<\1>{word})", path), re.DOTALL)


_PATTERNS = [
    (_pattern(route), route.target) for route in (*PREDICTIONS, *OPEN_INFERENCE, *QUERY_PREDICTIONS)
]
