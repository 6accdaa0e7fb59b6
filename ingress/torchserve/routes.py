"""Has every route of the server in one table.

The rules of the Flask applications, the paths of predictions, the keys that open them and the
OpenAPI documents are made from these rows; a test compares docs/torchserve-compatibility.md. A new
route is one row here, its operation in openapi.yaml, and the method in `ingress/rest/` that the row
names.

Source: TorchServe 0.12 inference, management and metrics API; `InferenceRequestHandler`,
`KFV1/V2InferenceRequestHandler`.
"""

import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ingress.role import Role

# TorchServe does not look at the method of a prediction, a ping or a renewal of a key.
ANY = "any"
LIVE_PATH, LIVE_TEXT = "/livez", "Live"

_INFERENCE, _MANAGEMENT, _METRICS = (Role.INFERENCE,), (Role.MANAGEMENT,), (Role.METRICS,)
_BOTH, _ALL = (Role.INFERENCE, Role.MANAGEMENT), tuple(Role)


class Key(Enum):
    """Says which key opens a route when tokens are on."""

    ADDRESS = "management's key where the address serves management, else inference's"
    INFERENCE = "inference's key where the address serves inference, else management's"
    NONE = "nothing, or the route asks for a key by itself"


class PredictionTarget(NamedTuple):
    """Holds what a prediction's path names and asks for."""

    model_name: str = ""
    model_version: str | None = None
    # Request headers for the handler, None where TorchServe adds none.
    explain: str | None = None
    url_path: str | None = None
    takes_query: bool = False  # as parts; the query names the model where the path does not
    is_v2: bool = False  # Open Inference Protocol


class Route(NamedTuple):
    method: str  # of HTTP, or ANY
    path: str  # as OpenAPI writes it; `{tail}` is the rest of the path, slashes included
    ports: Collection[Role]
    view: str  # with its method: `view.method`; empty for a prediction
    operation: str = ""  # its `operationId` in openapi.yaml; empty if no document has it
    key: Key = Key.ADDRESS
    target: PredictionTarget | None = None  # a prediction's, without its model

    def port_on(self, roles: Collection[Role]) -> Role | None:
        """Returns the port that the route belongs to on an address with these roles."""
        return next((role for role in self.ports if role in roles), None)


def _prediction(path: str, target: PredictionTarget, operation: str = "") -> Route:
    return Route(ANY, path, _INFERENCE, "", operation, Key.INFERENCE, target)


# Capitals as Python prints booleans.
_NATIVE, _NATIVE_EXPLAIN = (
    PredictionTarget(explain="False", url_path=""),
    PredictionTarget(explain="True", url_path=""),
)
_V1, _V1_EXPLAIN = PredictionTarget(explain="False"), PredictionTarget(explain="True")
_V2, _V2_EXPLAIN = (
    PredictionTarget(explain="False", is_v2=True),
    PredictionTarget(explain="True", is_v2=True),
)
_QUERY = PredictionTarget(takes_query=True)

_MODEL = "/models/{model_name}"
_VERSION = "/models/{model_name}/{model_version}"
_V1_MODEL = "/v1/models/{model_name}"
_V2_MODEL = "/v2/models/{model_name}"
_V2_VERSION = "/v2/models/{model_name}/versions/{model_version}"
_JOB = "/jobs/{job_id}"

# The first row that fits a path of the inference port decides whether it is a prediction.
ROUTES = (
    Route("OPTIONS", "/", _ALL, "shared.describe_api", "apiDescription", Key.NONE),
    Route("GET", "/api-description", _ALL, "shared.describe_api", "api-description", Key.NONE),
    _prediction(f"{_V1_MODEL}:predict", _V1, "kserveV1Predict"),
    _prediction(f"{_V1_MODEL}:explain", _V1_EXPLAIN),
    _prediction(f"{_V2_MODEL}/infer", _V2, "kserveV2Infer"),
    _prediction(f"{_V2_MODEL}/explain", _V2_EXPLAIN),
    _prediction(f"{_V2_VERSION}/infer", _V2),
    _prediction(f"{_V2_VERSION}/explain", _V2_EXPLAIN),
    _prediction("/predictions/{model_name}", _NATIVE, "predictions"),
    _prediction("/predictions/{model_name}/{model_version}", _NATIVE, "versionPredictions"),
    _prediction("/predictions/{model_name}/{model_version}/{tail}", _NATIVE),
    _prediction("/explanations/{model_name}", _NATIVE_EXPLAIN),
    _prediction("/explanations/{model_name}/{model_version}", _NATIVE_EXPLAIN),
    _prediction("/explanations/{model_name}/{model_version}/{tail}", _NATIVE_EXPLAIN),
    Route("GET", "/v2", _INFERENCE, "open_inference.server"),
    Route("GET", "/v2/health/live", _INFERENCE, "open_inference.live"),
    Route("GET", "/v2/health/ready", _INFERENCE, "open_inference.ready"),
    Route("GET", _V2_MODEL, _INFERENCE, "open_inference.model"),
    Route("GET", _V2_VERSION, _INFERENCE, "open_inference.model"),
    Route("GET", f"{_V2_MODEL}/ready", _INFERENCE, "open_inference.model_ready"),
    Route("GET", f"{_V2_VERSION}/ready", _INFERENCE, "open_inference.model_ready"),
    Route("GET", _V1_MODEL, _INFERENCE, "open_inference.model_ready"),
    _prediction("/invocations", _QUERY),
    _prediction(f"{_MODEL}/invoke", _QUERY),
    _prediction("/{model_name}/predict", _QUERY),
    _prediction("/{model_name}/{model_version}/predict", _QUERY),
    Route("OPTIONS", "/predictions/{model_name}", _INFERENCE, "inference.document"),
    Route("OPTIONS", "/predictions/{model_name}/{tail}", _INFERENCE, "inference.document"),
    Route(ANY, "/ping", _INFERENCE, "inference.ping", "ping", Key.INFERENCE),
    Route("OPTIONS", "/ping", _INFERENCE, "inference.ping", key=Key.INFERENCE),
    # Orchestrators have no key, and the answers hold nothing worth one.
    Route(ANY, LIVE_PATH, _INFERENCE, "inference.livez", "live", key=Key.NONE),
    Route("GET", "/readyz", _INFERENCE, "inference.readyz", "ready", key=Key.NONE),
    Route(ANY, "/wfpredict/{tail}", _INFERENCE, "inference.predict_workflow"),
    # Only where the setting `page` shows it.
    Route("GET", "/", _INFERENCE, "page.index"),
    Route("GET", "/page/page.css", _INFERENCE, "page.file"),
    Route("GET", "/page/page.js", _INFERENCE, "page.file"),
    Route("GET", "/page/models", _INFERENCE, "page.models"),
    Route("GET", "/page/batches", _INFERENCE, "page.batches"),
    Route("GET", "/openapi.json", _INFERENCE, "page.openapi"),
    Route("GET", "/docs", _INFERENCE, "page.docs"),
    Route("GET", "/docs/docs.js", _INFERENCE, "page.file"),
    Route("GET", "/docs/swagger-ui.css", _INFERENCE, "page.file"),
    Route("GET", "/docs/swagger-ui-bundle.js", _INFERENCE, "page.file"),
    Route("GET", "/models", _MANAGEMENT, "management.list_models", "listModels"),
    Route("POST", "/models", _MANAGEMENT, "management.register", "registerModel"),
    Route("GET", _MODEL, _MANAGEMENT, "management.describe", "describeModel"),
    Route("PUT", _MODEL, _MANAGEMENT, "management.scale", "setAutoScale"),
    Route("DELETE", _MODEL, _MANAGEMENT, "management.unregister", "unregisterModel"),
    Route("OPTIONS", _MODEL, _MANAGEMENT, "management.document"),
    Route("GET", f"{_MODEL}/all", _MANAGEMENT, "management.describe_all"),
    Route("GET", _VERSION, _MANAGEMENT, "management.describe", "versionDescribeModel"),
    Route("PUT", _VERSION, _MANAGEMENT, "management.scale", "versionSetAutoScale"),
    Route("DELETE", _VERSION, _MANAGEMENT, "management.unregister", "versionUnregisterModel"),
    Route("PUT", f"{_VERSION}/set-default", _MANAGEMENT, "management.set_default", "setDefault"),
    Route("GET", _V1_MODEL, _MANAGEMENT, "management.kserve_ready"),
    Route("GET", "/nodes", _MANAGEMENT, "management.list_nodes", "listNodes"),
    # Only with tokens on.
    Route(ANY, "/token", _MANAGEMENT, "token.renew_key", key=Key.NONE),
    # The URLs in answers about one job begin with the address that was asked.
    Route("GET", _JOB, _BOTH, "shared.answer_job", "getJob", Key.INFERENCE),
    Route("DELETE", _JOB, _BOTH, "shared.answer_job", "cancelJob", Key.INFERENCE),
    Route("GET", f"{_JOB}/result", _BOTH, "shared.answer_job", "getJobResult", Key.INFERENCE),
    Route("GET", "/jobs", _MANAGEMENT, "management.list_jobs", "listJobs"),
    Route("DELETE", "/jobs", _MANAGEMENT, "management.cancel_jobs", "cancelJobs"),
    Route("POST", "/jobs/retry", _MANAGEMENT, "management.retry_jobs", "retryJobs"),
    Route("POST", f"{_JOB}/retry", _MANAGEMENT, "management.retry_job", "retryJob"),
    Route("GET", "/metrics", _METRICS, "metrics.metrics", "metrics", key=Key.NONE),
)


# Clients repeat a few paths; more entries, of long paths, would fill the memory.
@lru_cache(maxsize=256)
def parse_prediction_path(path: str) -> PredictionTarget | None:
    """Returns the target of a percent-decoded path; None if it is no prediction's."""
    path = path.rstrip("/")
    for route, pattern in _PATTERNS:
        if Role.INFERENCE in route.ports and (match := pattern.fullmatch(path)):
            target, names = route.target, match.groupdict()
            return target and target._replace(
                model_name=names.get("model_name", ""),
                model_version=names.get("model_version") or None,
                url_path=names.get("tail", target.url_path),
            )
    return None


def key_for(method: str, path: str, roles: Collection[Role]) -> Role | None:
    """Returns the role whose key opens this path on an address with these roles; None: it is open.

    Paths without a route need a key, too.
    """
    if Role.INFERENCE in roles and parse_prediction_path(path) is not None:
        return Role.INFERENCE
    path, method = path.rstrip("/") or "/", "GET" if method == "HEAD" else method
    keys = (
        route.key
        for route, pattern in _PATTERNS
        if route.port_on(roles) and route.method in {method, ANY} and pattern.fullmatch(path)
    )
    key = next(keys, Key.ADDRESS)
    if key is Key.NONE:
        return None
    order = (Role.MANAGEMENT, Role.INFERENCE) if key is Key.ADDRESS else Role
    return next((role for role in order if role in roles and role is not Role.METRICS), None)


def _pattern(route: Route) -> re.Pattern[str]:
    is_native = route.target is not None and route.target.url_path is not None
    # TorchServe splits its own paths at each slash, and may look for a model without a name.
    segment = "[^/]*" if is_native else "[^/]+"
    path = re.escape(route.path).replace(r"\{", "{").replace(r"\}", "}")
    path = path.replace("{tail}", "(?P<tail>.+)").replace("{job_id}", "[0-9a-f]{32}")
    return re.compile(re.sub(r"{([a-z_]+)}", rf"(?P<\1>{segment})", path), re.DOTALL)


_PATTERNS = [(route, _pattern(route)) for route in ROUTES]
