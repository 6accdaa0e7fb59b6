"""What a running TorchServe says of itself, over its management API."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from batching.settings.settings import DEFAULT_ALLOWED_URLS, SettingsError
from ferry.moving.effects import Effect, Row, url_rows, version_rows
from ingress.role import Role
from ingress.torchserve.openapi import api_document

_PAGE = 100
_MOST_PAGES = 1000
_KNOWN = "0.12"

# Calls the management API: path segments and query parameters; returns JSON.
Get = Callable[..., Any]


def server_rows(get: Get) -> Iterator[Row]:
    """Yields the rows of the API and of each model version that is registered.

    Raises:
        SettingsError: the server answers something other than TorchServe.
    """
    yield from _api_rows(_mapping(get("api-description")))
    for name in _model_names(get):
        for version in _list(get("models", name, "all")):
            description = _mapping(version)
            url = str(description.get("modelUrl", ""))
            model_version = str(description.get("modelVersion", ""))
            yield from version_rows(name, model_version, description, url)
            part = f"model {name} {model_version}"
            yield from url_rows(part, url, DEFAULT_ALLOWED_URLS)


def _api_rows(document: Mapping[str, Any]) -> Iterator[Row]:
    version = str(_mapping(document.get("info", {})).get("version", ""))
    effect = Effect.SAME if version.startswith(_KNOWN) else Effect.NOTE
    yield Row("server", effect, f"TorchServe {version}; this server is held against {_KNOWN}")
    theirs, ours = _operations(document), _operations(api_document(list(Role)))
    yield Row("api", Effect.SAME, f"{len(theirs.keys() & ours.keys())} operations")
    for operation in sorted(theirs):
        if operation not in ours:
            yield Row("api", Effect.NOTE, f"{operation} is not here")
        elif missing := sorted(theirs[operation] - ours[operation]):
            yield Row("api", Effect.NOTE, f"{operation}: {', '.join(missing)} has no effect")


def _operations(document: Mapping[str, Any]) -> dict[str, set[str]]:
    """Returns the parameters of each operation."""
    return {
        f"{method.upper()} {path}": {
            str(_mapping(one).get("name"))
            for one in _list(_mapping(operation).get("parameters", []))
        }
        for path, operations in _mapping(document.get("paths", {})).items()
        for method, operation in _mapping(operations).items()
    }


def _model_names(get: Get) -> list[str]:
    names: list[str] = []
    token = ""
    for _ in range(_MOST_PAGES):
        page = _mapping(get("models", limit=_PAGE, next_page_token=token))
        names += [str(_mapping(one).get("modelName", "")) for one in _list(page.get("models"))]
        token = str(page.get("nextPageToken") or "")
        if not token:
            break
    return names


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError("this is no answer of TorchServe's management API")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SettingsError("this is no answer of TorchServe's management API")
    return value
