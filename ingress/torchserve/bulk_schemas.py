"""Describes files and batches as OpenAI's clients know them, in the words of OpenAPI: docs/bulk.md.

Times are Unix seconds. A test compares the documents with what the server gives.
"""

from typing import Any

from ingress.torchserve.schemas import (
    BYTES,
    FLAG,
    NUMBER,
    TEXT,
    answer,
    component,
    list_of,
    one_of,
    record,
)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "nullable": True}


def _all_of(**properties: Any) -> dict[str, Any]:
    return record(*properties, **properties)


def _page_of(name: str) -> dict[str, Any]:
    return answer(
        _all_of(
            object=one_of("list"),
            data=list_of(component(name)),
            first_id=_or_null(TEXT),
            last_id=_or_null(TEXT),
            has_more=FLAG,
        )
    )


FILE_SCHEMA = _all_of(
    id=TEXT,
    object=one_of("file"),
    bytes=NUMBER,
    created_at=NUMBER,
    expires_at=NUMBER,
    filename=TEXT,
    purpose=one_of("batch", "batch_output"),
    status=one_of("processed"),
)
_ENDED_AT = ("completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at")
BATCH_SCHEMA = _all_of(
    id=TEXT,
    object=one_of("batch"),
    endpoint=TEXT,
    errors=_or_null(
        _all_of(
            object=one_of("list"),
            data=list_of(
                _all_of(code=TEXT, message=TEXT, line=_or_null(NUMBER), param=_or_null(TEXT))
            ),
        )
    ),
    input_file_id=TEXT,
    completion_window=TEXT,
    status=one_of(
        *("validating", "in_progress", "finalizing", "cancelling"),
        *("completed", "failed", "expired", "cancelled"),
    ),
    output_file_id=_or_null(TEXT),
    error_file_id=_or_null(TEXT),
    created_at=NUMBER,
    expires_at=NUMBER,
    **{name: _or_null(NUMBER) for name in ("in_progress_at", "finalizing_at", *_ENDED_AT)},
    request_counts=_all_of(total=NUMBER, completed=NUMBER, failed=NUMBER),
    metadata=_or_null({"type": "object", "additionalProperties": TEXT}),
)
_SECONDS = {**NUMBER, "minimum": 3_600, "maximum": 30 * 86_400}

UPLOAD = {
    "multipart/form-data": {
        "schema": record(
            *("file", "purpose"),
            file=BYTES,
            purpose=one_of("batch"),
            **{"expires_after[anchor]": one_of("created_at"), "expires_after[seconds]": _SECONDS},
        )
    }
}
NEW_BATCH = {
    "application/json": {
        "schema": record(
            *("input_file_id", "endpoint"),
            input_file_id=TEXT,
            endpoint=TEXT,
            completion_window={**TEXT, "default": "24h"},
            metadata={
                "type": "object",
                "maxProperties": 16,
                "additionalProperties": {**TEXT, "maxLength": 512},
            },
            output_expires_after=_all_of(anchor=one_of("created_at"), seconds=_SECONDS),
        )
    }
}

FILE = answer(component("BulkFile"))
FILES = _page_of("BulkFile")
DELETED = answer(_all_of(id=TEXT, object=one_of("file"), deleted=FLAG))
_LINES = {"schema": BYTES}
CONTENT = {
    "description": "The file's lines",
    # Makers of clients that do not know the first type take the second one.
    "content": {"application/jsonl": _LINES, "application/octet-stream": _LINES},
}
BATCH = answer(component("Batch"))
BATCHES = _page_of("Batch")
