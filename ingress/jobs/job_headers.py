"""Reads what the headers of a prediction say of its job; their names are in lower case.

A header that cannot be understood is a BadRequest. Source: RFC 7240 (Prefer), and the expired
draft-ietf-httpapi-idempotency-key-header-07.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from batching.errors import BadRequest
from batching.store.jobs.job_records import Receiver
from batching.webhooks import ReceiverRules

MOST_WAIT_S = 60.0
KEEP_RANGE_S = (60, 604_800)
EVENTS = frozenset({"started", "completed"})  # for receivers of webhooks
_PREFERENCE = re.compile(r'\s*([\w-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?\s*(?:;[^,]*)?')
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """Holds what `Prefer` asks for; `wait_s` is 0 without a wait.

    `is_asked`: the client itself asks, not its model.
    """

    is_async: bool = False
    wait_s: float = 0.0
    is_asked: bool = True


NO_PREFERENCES = Preferences()


def preferences_of(headers: Mapping[str, str], async_after_s: int) -> Preferences:
    """Returns the client's preferences, else the model's: a job after `async_after_s`."""
    if "prefer" in headers:
        preferences = read_preferences(headers["prefer"])
        if preferences.is_async:
            return preferences
    accepted = (headers.get("accept") or "*/*").split(",")
    kinds = {kind.partition(";")[0].strip().lower() for kind in accepted}
    if async_after_s and kinds & {"*/*", "application/*", "application/json"}:
        return Preferences(is_async=True, wait_s=async_after_s, is_asked=False)
    return NO_PREFERENCES


@lru_cache(maxsize=64)
def read_preferences(header: str) -> Preferences:
    """Parses `Prefer`; ignores what is unknown or not well-formed, as RFC 7240 says."""
    values: dict[str, str] = {}
    for part in header.split(","):
        if match := _PREFERENCE.fullmatch(part):
            values.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    wait = values.get("wait", "")
    wait_s = min(float(wait), MOST_WAIT_S) if _NUMBER.fullmatch(wait) else 0.0
    return Preferences("respond-async" in values, wait_s)


def read_idempotency_key(headers: Mapping[str, str]) -> str:
    """Returns the key, which may be quoted: `abc` or `"abc"`; empty without one."""
    if "idempotency-key" not in headers:
        return ""
    key = headers["idempotency-key"].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 printable characters without spaces.")
    return key


def read_keep_s(headers: Mapping[str, str]) -> int | None:
    """Returns for how many seconds to keep the result; None if the client does not say."""
    ttl = headers.get("x-result-ttl-s")
    if ttl is None:
        return None
    least, most = KEEP_RANGE_S
    if not _NUMBER.fullmatch(ttl) or not least <= int(ttl) <= most:
        raise BadRequest(f"X-Result-Ttl-S must be a whole number of seconds, {least} to {most}.")
    return int(ttl)


def read_urgency(headers: Mapping[str, str]) -> bool:
    priority = headers.get("x-priority", "normal").lower()
    if priority not in {"high", "normal"}:
        raise BadRequest("X-Priority must be high or normal.")
    return priority == "high"


def read_receiver(
    headers: Mapping[str, str], base_url: str, rules: ReceiverRules | None
) -> Receiver | None:
    """Returns the receiver of the job's webhooks; None if the client names none.

    Without rules, this server sends no webhooks.
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
