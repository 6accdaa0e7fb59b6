"""Reads whom a job's client wants to be told of its end, and of what."""

from collections.abc import Mapping

from batching.errors import BadRequest
from batching.store.jobs.webhook_records import Receiver
from batching.webhooks import ReceiverRules

EVENTS = frozenset({"started", "completed"})


def read_receiver(
    headers: Mapping[str, str], base_url: str, rules: ReceiverRules | None
) -> Receiver | None:
    """Returns the receiver; None if the client names none.

    Args:
        headers: of the request, names in lower case.
        base_url: of the server as this client sees it.
        rules: which receivers may be; None: this server tells nobody.

    Raises:
        BadRequest: a header that is not understood, or a receiver that may not be.
    """
    url = headers.get("webhook-url")
    if url is None:
        return None
    if rules is None:
        raise BadRequest("This server sends no webhooks: its operator has to set webhook_secrets.")
    try:
        rules.check_url(url)
    except ValueError as error:
        raise BadRequest(f"Webhook-Url must be {error}.") from error
    events = {event.strip() for event in headers.get("webhook-events", "completed").split(",")}
    if not events <= EVENTS or "completed" not in events:
        raise BadRequest("Webhook-Events must be completed, or started,completed.")
    include = headers.get("webhook-include", "")
    if include not in {"", "result"}:
        raise BadRequest("Webhook-Include must be result, if it is there.")
    return Receiver(url, base_url, "started" in events, include == "result")
