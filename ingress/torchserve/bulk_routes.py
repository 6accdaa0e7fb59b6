"""The rows of the table of routes that are about files and batches: docs/bulk.md."""

from typing import Any

from ingress.torchserve import bulk_schemas as bulk
from ingress.torchserve.route import Route
from ingress.torchserve.schemas import NUMBER, TEXT, refusals

_FILE, _BATCH = "/v1/files/{file_id}", "/v1/batches/{batch_id}"
_PAGE = {"limit": NUMBER, "after": TEXT}
_OF_ONE = ("403", "404", "501")


def _route(
    method: str, path: str, view: str, operation: str, refused: tuple[str, ...], **more: Any
) -> Route:
    others = refusals(*refused)
    return Route(method, path, view, operation, others=others, better="not in TorchServe", **more)


BULK = (
    _route(
        "POST",
        "/v1/files",
        "upload",
        "createFile",
        ("400", "403", "413", "501", "507"),
        body=bulk.UPLOAD,
        gives=bulk.FILE,
    ),
    _route(
        "GET",
        "/v1/files",
        "list_files",
        "listFiles",
        ("400", "403", "501"),
        query={**_PAGE, "purpose": TEXT},
        gives=bulk.FILES,
    ),
    _route("GET", _FILE, "show_file", "retrieveFile", _OF_ONE, gives=bulk.FILE),
    _route(
        "DELETE",
        _FILE,
        "delete_file",
        "deleteFile",
        ("403", "404", "409", "501"),
        gives=bulk.DELETED,
    ),
    _route(
        "POST",
        "/v1/batches",
        "create_batch",
        "createBatch",
        ("400", "403", "404", "501", "507"),
        body=bulk.NEW_BATCH,
        gives=bulk.BATCH,
    ),
    _route(
        "GET",
        "/v1/batches",
        "list_batches",
        "listBatches",
        ("400", "403", "501"),
        query=_PAGE,
        gives=bulk.BATCHES,
    ),
    _route("GET", _BATCH, "show_batch", "retrieveBatch", _OF_ONE, gives=bulk.BATCH),
    _route(
        "POST",
        f"{_BATCH}/cancel",
        "cancel_batch",
        "cancelBatch",
        (*_OF_ONE, "507"),
        gives=bulk.BATCH,
    ),
    _route("GET", f"{_FILE}/content", "download", "downloadFile", _OF_ONE, gives=bulk.CONTENT),
)
