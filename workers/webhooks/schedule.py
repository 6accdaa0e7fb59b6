"""Decides what follows a try: a pure function of the receiver's answer."""

import datetime
import email.utils
import random

from batching.store.jobs.webhook_store import WebhookOutcome
from workers.webhooks.delivery import Heard

MINUTE_S, HOUR_S = 60, 3600
# Waits after the tries. The job may be forgotten before the last one, and then nobody is told.
WAITS_S = (
    5,
    5 * MINUTE_S,
    30 * MINUTE_S,
    2 * HOUR_S,
    5 * HOUR_S,
    10 * HOUR_S,
    14 * HOUR_S,
    20 * HOUR_S,
    24 * HOUR_S,
)
# Receivers that fail together are not to be asked together.
JITTER = 0.1
_GONE = 410


def after(heard: Heard, tries: int) -> tuple[WebhookOutcome, float]:
    """Returns how a try ended, and after how many seconds to try again.

    Args:
        heard: of the receiver.
        tries: before this one.
    """
    if 200 <= heard.status < 300:  # noqa: PLR2004 - the range is its own name
        return WebhookOutcome.DELIVERED, 0.0
    if heard.status == _GONE:
        return WebhookOutcome.GONE, 0.0
    if tries >= len(WAITS_S):
        return WebhookOutcome.FAILED, 0.0
    wait_s = WAITS_S[tries] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
    return WebhookOutcome.PENDING, max(wait_s, min(_asked_s(heard.retry_after), WAITS_S[-1]))


def words_of(heard: Heard) -> str:
    """Returns what went wrong; empty if nothing did."""
    if heard.error or not heard.status:
        return heard.error or "no answer"
    return "" if heard.status < 300 else f"status {heard.status}"  # noqa: PLR2004 - see above


def _asked_s(retry_after: str) -> float:
    """Returns the seconds that `Retry-After` asks for; 0 if it is none."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        until = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, (until - datetime.datetime.now(datetime.UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
