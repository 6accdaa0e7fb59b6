"""Says what a row of the table of routes has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ingress.torchserve import schemas
from ingress.torchserve.request_headers import RequestHeader

# TorchServe does not look at the method of a prediction, a ping or a renewal of a key.
ANY = "any"


class Target(NamedTuple):
    """Says what a prediction's path names and asks for.

    `explain` and `url_path` are request headers for the handler, None where TorchServe adds none.
    `takes_query`: the query string belongs to the row, and may name the model where the path does
    not. `is_v2`: a path of the Open Inference Protocol.
    """

    model_name: str = ""
    model_version: str | None = None
    explain: str | None = None
    url_path: str | None = None
    takes_query: bool = False
    is_v2: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    Attributes:
        method: of HTTP, or ANY.
        path: as OpenAPI writes it. `{tail}` is the rest of the path, slashes included.
        view: the name of the method that answers.
        operation: the id in the OpenAPI documents. They leave out a route without one.
        query: the query's parameters and their schemas.
        gives: an answer that is no error. A prediction gives what the handler does.
        codes: the status codes of such answers.
        headers: of the request, those that the server reads.
        body: of the request, by media type; None: there is none, or it is a prediction's.
        others: further answers by status code, refusals among them.
        target: what a prediction's route asks for, of any model; None for all others.
        note: a remark for the compatibility page.
        better: the same, where TorchServe has no such route or a worse one.
    """

    method: str
    path: str
    view: str
    operation: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    gives: Mapping[str, Any] = field(default_factory=lambda: schemas.STATUS)
    codes: tuple[str, ...] = ("200",)
    headers: tuple[RequestHeader, ...] = ()
    body: Mapping[str, Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    note: str = ""
    better: str = ""
