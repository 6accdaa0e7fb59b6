"""Which paths are predictions, and what they ask for.

Source: TorchServe 0.12 `InferenceRequestHandler`, `KFV1/V2InferenceRequestHandler`; contract 1.2.
"""

from typing import NamedTuple


class Target(NamedTuple):
    """What a prediction path names. `url_path` is None where TorchServe adds no such header."""

    model_name: str
    model_version: str | None
    explain: str
    url_path: str | None


# Request headers say this to the handler; capitals as Python prints booleans.
_PREDICT, _EXPLAIN = "False", "True"
_NATIVE_PREFIXES = (("/predictions/", _PREDICT), ("/explanations/", _EXPLAIN))
_KSERVE_V1_PREFIX = "/v1/models/"
_KSERVE_V1_VERBS = {"predict": _PREDICT, "explain": _EXPLAIN}
_KSERVE_V2_PREFIX = "/v2/models/"
_KSERVE_V2_VERBS = {"infer": _PREDICT, "explain": _EXPLAIN}


def parse_prediction_path(path: str) -> Target | None:
    """The target of a percent-decoded path, or None when it is not a prediction's."""
    for prefix, explain in _NATIVE_PREFIXES:
        if path.startswith(prefix):
            return _native_target(path[len(prefix) :].rstrip("/"), explain)
    if path.startswith(_KSERVE_V1_PREFIX):
        name, colon, verb = path[len(_KSERVE_V1_PREFIX) :].rstrip("/").rpartition(":")
        return _kserve_target(name, _KSERVE_V1_VERBS.get(verb) if colon else None)
    if path.startswith(_KSERVE_V2_PREFIX):
        name, _, verb = path[len(_KSERVE_V2_PREFIX) :].rstrip("/").partition("/")
        return _kserve_target(name, _KSERVE_V2_VERBS.get(verb))
    return None


def _native_target(rest: str, explain: str) -> Target | None:
    if not rest:
        return None
    name, _, tail = rest.partition("/")
    version, _, url_path = tail.partition("/")
    return Target(name, version or None, explain, url_path)


def _kserve_target(name: str, explain: str | None) -> Target | None:
    if explain is None or not name or "/" in name:
        return None
    return Target(name, None, explain, None)
