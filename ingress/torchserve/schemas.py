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
_OBJECT = {"type": "object"}
KINDS: Mapping[type, dict[str, Any]] = {
    bool: FLAG,
    int: NUMBER,
    str: TEXT,
    list: {"type": "array", "items": NUMBER},
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _answer(
    schema: dict[str, Any], description: str = "Done", media_type: str = "application/json"
) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}


# What handlers give is theirs, but generators make nothing of a body of any type.
_HANDLERS = "The handler's answer"
HANDLERS_JSON = _answer(_OBJECT, _HANDLERS)
HANDLERS_BYTES = _answer({**TEXT, "format": "binary"}, _HANDLERS, "application/octet-stream")
EVENTS = _answer(TEXT, "Server-sent events", "text/event-stream")
METRICS = _answer(TEXT, "Metrics", "text/plain")
STATUS = _answer(_object(status=TEXT))
DOCUMENT = _answer(_OBJECT)
DOCUMENTS = _answer(_list_of(_OBJECT))
MODELS = _answer(
    _object(nextPageToken=TEXT, models=_list_of(_object(modelName=TEXT, modelUrl=TEXT)))
)
DESCRIPTION = _answer(
    _list_of(
        _object(
            modelName=TEXT,
            modelVersion=TEXT,
            modelUrl=TEXT,
            runtime=TEXT,
            **{one.word: KINDS[one.kind] for one in PARAMETERS if one.is_described},
            loadedAtStartup=FLAG,
            workers=_list_of(
                _object(id=TEXT, startTime=TEXT, status=TEXT, memoryUsage=NUMBER, pid=NUMBER)
            ),
            jobQueueStatus=_object(remainingCapacity=NUMBER, pendingRequests=NUMBER),
            isDefault=FLAG,
            error=TEXT,
        )
    )
)
_JOB = _object(
    id=TEXT,
    model=TEXT,
    version=TEXT,
    status=TEXT,
    created_at=TEXT,
    started_at=TEXT,
    finished_at=TEXT,
    expires_at=TEXT,
    attempts=NUMBER,
    position=NUMBER,
    durable=FLAG,
    batch=_object(worker=TEXT, size=NUMBER, closed_by=TEXT, queue_ms=NUMBER, run_ms=NUMBER),
    progress=_object(share=NUMBER, text=TEXT),
    error=_object(code=NUMBER, type=TEXT, message=TEXT),
    result_url=TEXT,
    cancel_url=TEXT,
)
JOB = _answer(_JOB)
JOBS = _answer(_object(jobs=_list_of(_JOB), next_cursor=TEXT))
COUNT = _answer(_object(jobs=NUMBER))
ERROR = _answer(
    {**_object(code=NUMBER, type=TEXT, message=TEXT), "required": ["code", "type", "message"]},
    "Refused or failed",
)
