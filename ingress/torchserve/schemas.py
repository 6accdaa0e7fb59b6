"""What routes give, in the words of OpenAPI.

Clients are generated from these. A value without a type here has no type in such a client; a body
without content cannot be sent, and an answer without content is thrown away.
"""

from collections.abc import Mapping
from typing import Any

from batching.models.spec import PARAMETERS

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
FLAG = {"type": "boolean"}
BYTES = {**TEXT, "format": "binary"}
_OBJECT = {"type": "object"}
KINDS: Mapping[type, dict[str, Any]] = {
    bool: FLAG,
    int: NUMBER,
    str: TEXT,
    list: {"type": "array", "items": NUMBER},
}


def record(*required: str, **properties: Any) -> dict[str, Any]:
    """Returns the schema of an object that has these properties, and surely the required ones."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": list(required)} if required else schema


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def one_of(*words: str) -> dict[str, Any]:
    return {**TEXT, "enum": list(words)}


def component(name: str) -> dict[str, Any]:
    """Returns the schema that the document has under this name, for a client's class of it."""
    return {"$ref": f"#/components/schemas/{name}"}


def answer(
    schema: dict[str, Any],
    description: str = "Done",
    media_type: str = "application/json",
    headers: Mapping[str, tuple[dict[str, Any], str]] | None = None,
) -> dict[str, Any]:
    """Returns the description of an answer.

    Args:
        schema: of its body.
        description: when it is given.
        media_type: of its body.
        headers: it may have these, each with its schema and when it is there.
    """
    found: dict[str, Any] = {
        "description": description,
        "content": {media_type: {"schema": schema}},
    }
    if headers:
        found["headers"] = {
            name: {"schema": kind, "description": about} for name, (kind, about) in headers.items()
        }
    return found


# What handlers give is theirs, but generators make nothing of a body of any type.
_HANDLERS = "The handler's answer"
HANDLERS_JSON = answer(_OBJECT, _HANDLERS)
HANDLERS_BYTES = answer(BYTES, _HANDLERS, "application/octet-stream")
METRICS = answer(TEXT, "Metrics", "text/plain")
STATUS = answer(record(status=TEXT))
DOCUMENT = answer(_OBJECT)
DOCUMENTS = answer(list_of(_OBJECT))
MODELS = answer(record(nextPageToken=TEXT, models=list_of(record(modelName=TEXT, modelUrl=TEXT))))
DESCRIPTION = answer(
    list_of(
        record(
            modelName=TEXT,
            modelVersion=TEXT,
            modelUrl=TEXT,
            runtime=TEXT,
            **{one.word: KINDS[one.kind] for one in PARAMETERS if one.is_described},
            loadedAtStartup=FLAG,
            workers=list_of(
                record(id=TEXT, startTime=TEXT, status=TEXT, memoryUsage=NUMBER, pid=NUMBER)
            ),
            jobQueueStatus=record(remainingCapacity=NUMBER, pendingRequests=NUMBER),
            isDefault=FLAG,
            error=TEXT,
        )
    )
)
# The Open Inference Protocol has its message in `error`, too.
ERROR_SCHEMA = record("code", "type", "message", code=NUMBER, type=TEXT, message=TEXT, error=TEXT)
_ERROR = component("Error")
ERROR = answer(_ERROR, "Refused or failed")
_REFUSALS = {
    "400": "A header, a parameter or the body is not understood",
    "403": "Files and batches are on the management port only",
    "404": "There is none of this id or name, or no longer",
    "409": "Not possible in the state that it is in",
    "410": "The job was cancelled, or its result has been let go",
    "413": "The body is too large",
    "422": "The Idempotency-Key belongs to another request",
    "501": "This server has no folder for files",
    "503": "Too many wait, or Redis is full or away, or there is no worker",
    "507": "The file cannot be written, as the disk is full or broken",
}
_RETRY_AFTER = {"Retry-After": (NUMBER, "In how many seconds to try again, if that may help")}


def refusals(*codes: str) -> dict[str, Any]:
    """Returns the answers that refuse a request, by their status code."""
    return {
        code: answer(_ERROR, _REFUSALS[code], headers=_RETRY_AFTER if code == "503" else None)
        for code in codes
    }
