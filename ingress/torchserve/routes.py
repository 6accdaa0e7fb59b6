"""Every route of the server, in one table.

The rules of the Flask applications, the paths of predictions and the OpenAPI documents are made of
these rows, and docs/torchserve-compatibility.md is held against them. A new route is one row here,
or in the table of jobs or files that is put in here, and one method of that name in its API's file
in `ingress/rest/`.

Source: TorchServe 0.12 inference, management and metrics API.
"""

from collections.abc import Mapping

from batching.models.registration import SERVING
from batching.models.spec import PARAMETERS
from ingress.role import Role
from ingress.torchserve import schemas
from ingress.torchserve.job_routes import JOBS, LISTS_OF_JOBS
from ingress.torchserve.job_schemas import OF_PREDICTIONS
from ingress.torchserve.request_headers import SUBMIT, TENSOR_BYTES
from ingress.torchserve.route import ANY, Route, Target
from ingress.torchserve.schemas import FLAG, KINDS, NUMBER, TEXT

LIVE_PATH = "/livez"
TOKEN_PATH = "/token"  # noqa: S105 - a path

# Capitals as Python prints booleans.
_NATIVE = Target(explain="False", url_path="")
_NATIVE_EXPLAIN = Target(explain="True", url_path="")
_V1, _V1_EXPLAIN = Target(explain="False"), Target(explain="True")
_V2, _V2_EXPLAIN = Target(explain="False", is_v2=True), Target(explain="True", is_v2=True)
_QUERY = Target(takes_query=True)


def _prediction(
    path: str, target: Target, operation: str = "", *, note: str = "", better: str = ""
) -> Route:
    return Route(
        ANY,
        path,
        "predict",
        operation,
        headers=(*SUBMIT, TENSOR_BYTES) if target.is_v2 else SUBMIT,
        others=OF_PREDICTIONS,
        target=target,
        note=note,
        better=better,
    )


_MODEL = "/models/{model_name}"
_VERSION = "/models/{model_name}/{model_version}"
_V1_MODEL = "/v1/models/{model_name}"
_V2_MODEL = "/v2/models/{model_name}"
_V2_VERSION = "/v2/models/{model_name}/versions/{model_version}"
_NOT_THERE = "not in TorchServe"
_ALWAYS_ON = "always on"
_NO_VERSIONS = "TorchServe answers 501 or 404"

EVERYWHERE = (
    Route("OPTIONS", "/", "describe_api", "apiDescription", gives=schemas.DOCUMENT),
    Route("GET", "/api-description", "describe_api", "api-description", gives=schemas.DOCUMENT),
)

# The first row that fits a path decides, here and in the next two tables.
PREDICTIONS = (
    _prediction(f"{_V1_MODEL}:predict", _V1, "kserveV1Predict"),
    _prediction(f"{_V1_MODEL}:explain", _V1_EXPLAIN),
    _prediction(f"{_V2_MODEL}/infer", _V2, "kserveV2Infer"),
    _prediction(f"{_V2_MODEL}/explain", _V2_EXPLAIN),
    _prediction(f"{_V2_VERSION}/infer", _V2, better=_NO_VERSIONS),
    _prediction(f"{_V2_VERSION}/explain", _V2_EXPLAIN, better=_NO_VERSIONS),
    _prediction("/predictions/{model_name}", _NATIVE, "predictions"),
    _prediction("/predictions/{model_name}/{model_version}", _NATIVE, "versionPredictions"),
    _prediction(
        "/predictions/{model_name}/{model_version}/{tail}",
        _NATIVE,
        note="the handler finds `tail` in the header `url_path`",
    ),
    _prediction("/explanations/{model_name}", _NATIVE_EXPLAIN),
    _prediction("/explanations/{model_name}/{model_version}", _NATIVE_EXPLAIN),
    _prediction("/explanations/{model_name}/{model_version}/{tail}", _NATIVE_EXPLAIN),
)

OPEN_INFERENCE = (
    Route("GET", "/v2", "server", better=_ALWAYS_ON),
    Route("GET", "/v2/health/live", "live", better=_ALWAYS_ON),
    Route(
        "GET",
        "/v2/health/ready",
        "ready",
        better="false until every model has a ready worker, and while startup models are "
        "registered into an empty registry",
    ),
    Route("GET", _V2_MODEL, "model", better=_NOT_THERE),
    Route("GET", _V2_VERSION, "model", better=_NOT_THERE),
    Route("GET", f"{_V2_MODEL}/ready", "model_ready", better=_NOT_THERE),
    Route("GET", f"{_V2_VERSION}/ready", "model_ready", better=_NOT_THERE),
    Route(
        "GET",
        _V1_MODEL,
        "model_ready",
        better="KServe asks the inference port; ready if a worker is ready",
    ),
)

QUERY_PREDICTIONS = (
    _prediction("/invocations", _QUERY, note="SageMaker"),
    _prediction(f"{_MODEL}/invoke", _QUERY, note="SageMaker"),
    _prediction("/{model_name}/predict", _QUERY),
    _prediction("/{model_name}/{model_version}/predict", _QUERY),
)

INFERENCE = (
    Route("OPTIONS", "/predictions/{model_name}", "document"),
    Route("OPTIONS", "/predictions/{model_name}/{tail}", "document"),
    Route(
        ANY,
        "/ping",
        "ping",
        "ping",
        codes=("200", "500"),
        note="500 while startup models are registered into an empty registry; TorchServe's port is "
        "closed then",
    ),
    Route("OPTIONS", "/ping", "ping"),
    Route(ANY, LIVE_PATH, "livez", "live", better="whether the process answers"),
    Route(
        "GET",
        "/readyz",
        "readyz",
        "ready",
        codes=("200", "503"),
        better="whether a request would be served now",
    ),
    Route(ANY, "/wfpredict/{tail}", "predict_workflow", note="404 `WorkflowNotFoundException`"),
    *JOBS,
)

# Only where the setting `page` shows it.
PAGE = (
    Route(
        "GET",
        "/",
        "index",
        better="a page for browsers, its links for others; 405 as in TorchServe with `page=off`, "
        "which `ferry torchserve` sets",
    ),
    Route("GET", "/page/page.css", "file", better=_NOT_THERE),
    Route("GET", "/page/page.js", "file", better=_NOT_THERE),
    Route("GET", "/page/models", "models", better=_NOT_THERE),
    Route("GET", "/page/batches", "batches", better=_NOT_THERE),
    Route("GET", "/openapi.json", "openapi", better="the API document, with the models"),
    Route("GET", "/docs", "docs", better="reads it"),
    Route("GET", "/docs/docs.js", "file", better=_NOT_THERE),
    Route("GET", "/docs/swagger-ui.css", "file", better=_NOT_THERE),
    Route("GET", "/docs/swagger-ui-bundle.js", "file", better=_NOT_THERE),
)

_CUSTOMIZED = {"customized": FLAG}
_SCALE = {"min_worker": NUMBER, "max_worker": NUMBER, "synchronous": FLAG}
_SCALED = ("200", "202", "206")
_REGISTER = {
    "url": TEXT,
    "model_name": TEXT,
    "handler": TEXT,
    "runtime": TEXT,
    **{one.rest: KINDS[one.kind] for one in PARAMETERS if one.rest},
    "synchronous": FLAG,
    "defaults": schemas.one_of(SERVING),
}

MANAGEMENT = (
    Route(
        "GET",
        "/models",
        "list_models",
        "listModels",
        {"limit": NUMBER, "next_page_token": TEXT},
        schemas.MODELS,
    ),
    Route("POST", "/models", "register", "registerModel", _REGISTER, codes=_SCALED),
    Route("GET", _MODEL, "describe", "describeModel", _CUSTOMIZED, schemas.DESCRIPTION),
    Route("PUT", _MODEL, "scale", "setAutoScale", _SCALE, codes=_SCALED),
    Route("DELETE", _MODEL, "unregister", "unregisterModel"),
    Route("OPTIONS", _MODEL, "document"),
    Route("GET", f"{_MODEL}/all", "describe_all"),
    Route("GET", _VERSION, "describe", "versionDescribeModel", _CUSTOMIZED, schemas.DESCRIPTION),
    Route("PUT", _VERSION, "scale", "versionSetAutoScale", _SCALE, codes=_SCALED),
    Route("DELETE", _VERSION, "unregister", "versionUnregisterModel"),
    Route("PUT", f"{_VERSION}/set-default", "set_default", "setDefault"),
    Route("GET", _V1_MODEL, "kserve_ready", better="a failed worker does not make it ready"),
    Route(
        "GET",
        "/nodes",
        "list_nodes",
        "listNodes",
        gives=schemas.DOCUMENTS,
        better="nodes that run, with or without workers; not in TorchServe",
    ),
    *JOBS,
    *LISTS_OF_JOBS,
)

TOKEN = (Route(ANY, TOKEN_PATH, "renew", better="keys of 256 bits; only with tokens on"),)

METRICS = (Route("GET", "/metrics", "metrics", "metrics", {"name[]": TEXT}, schemas.METRICS),)

ROUTES: Mapping[Role, tuple[Route, ...]] = {
    Role.INFERENCE: (*PREDICTIONS, *OPEN_INFERENCE, *QUERY_PREDICTIONS, *INFERENCE, *PAGE),
    Role.MANAGEMENT: (*MANAGEMENT, *TOKEN),
    Role.METRICS: METRICS,
}
