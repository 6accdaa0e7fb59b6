"""Writes what a receiver is told of a job."""

import base64
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from batching.store.jobs.job_records import Job, Receiver, job_document, small_reply
from batching.store.jobs.webhook_store import Event
from batching.webhooks import signatures

MOST_RESULT_BYTES = 16_384


class Message(NamedTuple):
    """What is sent: the same body and id at each try, but for what the job says of the tries."""

    headers: Mapping[str, str]
    body: bytes


def write_message(event: Event, job: Job, receiver: Receiver, keys: Sequence[bytes]) -> Message:
    """Returns the signed message.

    Args:
        event: of which it tells.
        job: as it is now.
        receiver: of it.
        keys: of the signatures.
    """
    moment = datetime.datetime.now(datetime.UTC)  # receivers refuse what is old
    document = job_document(job, receiver.base_url)
    if receiver.is_result_told and (result := _result(job)) is not None:
        document["result"] = result
    now_s = int(moment.timestamp())
    body = msgspec.json.encode(
        {
            "type": f"job.{event.name}",
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "data": document,
        }
    )
    message_id = f"msg_{event.job_id}_{event.name}_{event.submitted_ms}"
    headers = {
        "content-type": "application/json",
        "user-agent": "torchferry",
        "webhook-id": message_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": signatures(keys, message_id, now_s, body),
    }
    return Message(headers, body)


def _result(job: Job) -> dict[str, Any] | None:
    """Returns the result if it is there and small; what is not UTF-8, as base64."""
    reply = small_reply(job)
    if reply is None or len(reply.body) > MOST_RESULT_BYTES:
        return None
    names = {name.lower(): value for name, value in (reply.headers or {}).items()}
    found: dict[str, Any] = {"status_code": reply.status}
    if content_type := names.get("content-type"):
        found["content_type"] = content_type
    try:
        return found | {"body": bytes(reply.body).decode()}
    except UnicodeDecodeError:
        return found | {"body_b64": base64.b64encode(bytes(reply.body)).decode()}
