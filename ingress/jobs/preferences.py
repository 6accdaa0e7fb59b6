"""Reads what a request says about its job: `Prefer`, `Idempotency-Key`, times and priority.

Source: RFC 7240 (Prefer); the expired draft-ietf-httpapi-idempotency-key-header-07.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from batching.errors import BadRequest

MOST_WAIT_S = 60.0
KEEP_RANGE_S = (60, 604_800)

_PREFERENCE = re.compile(r'\s*([\w-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?\s*(?:;[^,]*)?')
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """What `Prefer` asks for; `wait_s` is 0 where it does not. `is_asked`: by the client itself."""

    is_async: bool = False
    wait_s: float = 0.0
    is_asked: bool = True


NO_PREFERENCES = Preferences()


def preferences_of(headers: Mapping[str, str], async_after_s: int) -> Preferences:
    """Returns the client's preferences, or those of a model that gives a job after so long.

    Args:
        headers: of the request, names in lower case.
        async_after_s: of the model; 0: none.
    """
    if "prefer" in headers:
        found = read_preferences(headers["prefer"])
        if found.is_async:
            return found
    if async_after_s and _takes_json(headers.get("accept", "")):
        return Preferences(is_async=True, wait_s=async_after_s, is_asked=False)
    return NO_PREFERENCES


@lru_cache(maxsize=64)
def read_preferences(header: str) -> Preferences:
    """Parses `Prefer`; what is unknown in it, or not well-formed, is ignored as RFC 7240 says."""
    found: dict[str, str] = {}
    for part in header.split(","):
        if match := _PREFERENCE.fullmatch(part):
            found.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    wait = found.get("wait", "")
    wait_s = min(float(wait), MOST_WAIT_S) if _NUMBER.fullmatch(wait) else 0.0
    return Preferences("respond-async" in found, wait_s)


def _takes_json(accept: str) -> bool:
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return not accept or bool(kinds & {"*/*", "application/*", "application/json"})


def read_idempotency_key(headers: Mapping[str, str]) -> str:
    """Returns the key, of which `abc` and `"abc"` are two spellings; empty without one.

    Raises:
        BadRequest: it is not 1 to 255 printable characters.
    """
    text = headers.get("idempotency-key")
    if text is None:
        return ""
    key = text.strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 printable characters without spaces.")
    return key


def read_keep_s(headers: Mapping[str, str]) -> int | None:
    """Returns for how long the result is to be kept; None when the client does not say.

    Raises:
        BadRequest: not a number of seconds in KEEP_RANGE_S.
    """
    text = headers.get("x-result-ttl-s")
    if text is None:
        return None
    least, most = KEEP_RANGE_S
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise BadRequest(f"X-Result-Ttl-S must be a whole number of seconds, {least} to {most}.")
    return int(text)


def read_urgency(headers: Mapping[str, str]) -> bool:
    """Returns whether the job is to wait among the requests.

    Raises:
        BadRequest: a priority that is neither `high` nor `normal`.
    """
    priority = headers.get("x-priority", "normal").lower()
    if priority not in {"high", "normal"}:
        raise BadRequest("X-Priority must be high or normal.")
    return priority == "high"
