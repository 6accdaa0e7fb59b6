"""Which paths are predictions, and what they ask for.

Source: TorchServe 0.12 `InferenceRequestHandler`, `KFV1/V2InferenceRequestHandler`.
"""

from functools import lru_cache
from typing import NamedTuple


class Target(NamedTuple):
    """What a prediction path names.

    `explain` and `url_path` are None where TorchServe adds no such header. `takes_query`: the query
    string belongs to the row, and may name the model where `model_name` is empty. `is_v2`: a path
    of the Open Inference Protocol.
    """

    model_name: str
    model_version: str | None
    explain: str | None
    url_path: str | None
    takes_query: bool = False
    is_v2: bool = False


_MAX_KEPT_CHARS = 256

# Request headers say this to the handler; capitals as Python prints booleans.
_PREDICT, _EXPLAIN = "False", "True"
_NATIVE_PREFIXES = (("/predictions/", _PREDICT), ("/explanations/", _EXPLAIN))
_KSERVE_V1_PREFIX = "/v1/models/"
_KSERVE_V1_VERBS = {"predict": _PREDICT, "explain": _EXPLAIN}
_KSERVE_V2_PREFIX = "/v2/models/"
_KSERVE_V2_VERBS = {"infer": _PREDICT, "explain": _EXPLAIN}


def parse_prediction_path(path: str) -> Target | None:
    """Returns the target of a percent-decoded path, or None when it is not a prediction's."""
    # Few paths are asked for again and again; long ones, which may be anybody's, are not kept.
    return _known_target(path) if len(path) <= _MAX_KEPT_CHARS else _target(path)


def _target(path: str) -> Target | None:
    for prefix, explain in _NATIVE_PREFIXES:
        if path.startswith(prefix):
            return _native_target(path[len(prefix) :].rstrip("/"), explain)
    if path.startswith(_KSERVE_V1_PREFIX):
        name, colon, verb = path[len(_KSERVE_V1_PREFIX) :].rstrip("/").rpartition(":")
        return _kserve_v1_target(name, _KSERVE_V1_VERBS.get(verb) if colon else None)
    if path.startswith(_KSERVE_V2_PREFIX):
        return _kserve_v2_target(path[len(_KSERVE_V2_PREFIX) :].rstrip("/").split("/"))
    return _query_target(path.rstrip("/").split("/")[1:])


_known_target = lru_cache(maxsize=1024)(_target)


def _native_target(rest: str, explain: str) -> Target | None:
    if not rest:
        return None
    name, _, tail = rest.partition("/")
    version, _, url_path = tail.partition("/")
    return Target(name, version or None, explain, url_path)


def _kserve_v1_target(name: str, explain: str | None) -> Target | None:
    if explain is None or not name or "/" in name:
        return None
    return Target(name, None, explain, None)


def _kserve_v2_target(words: list[str]) -> Target | None:
    # Versions are the protocol's; TorchServe has none here.
    match words:
        case [str(name), str(verb)] | [str(name), "versions", _, str(verb)]:
            version = words[2] if len(words) > 2 else None  # noqa: PLR2004
            explain = _KSERVE_V2_VERBS.get(verb)
            if explain is not None and name and version != "":
                return Target(name, version, explain, None, is_v2=True)
    return None


def _query_target(words: list[str]) -> Target | None:
    """Returns the paths of SageMaker and of TorchServe's predecessor."""
    match words:
        case ["invocations"]:
            return Target("", None, None, None, takes_query=True)
        case ["models", str(name), "invoke"] | [str(name), "predict"] if name:
            return Target(name, None, None, None, takes_query=True)
        case [str(name), str(version), "predict"] if name and version:
            return Target(name, version, None, None, takes_query=True)
    return None
