"""What a job's hash says of its webhook: whom to tell of what, and how far that has come.

webhook         the receiver, as JSON
webhook_start   1, if the receiver is to hear of a start, too
webhook_event   of which it is to hear, or has heard last: started, or the final status
webhook_tries   of this event
webhook_status  pending, delivered, failed or gone
webhook_error   of the last try; empty when there was none
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

import msgspec

STARTED = "started"


class Outcome(StrEnum):
    """Says how a try ended; after the last two the event is due again."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    PENDING = "pending"
    BUSY = "busy"  # it was no try: too many are under way to this receiver


class Receiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is told, and what. `base_url` is of the server, as its client saw it."""

    url: str
    base_url: str
    is_start_told: bool = False
    is_result_told: bool = False

    def encode(self) -> bytes:
        """Returns the value of the field."""
        return msgspec.json.encode(self)


class Webhook(msgspec.Struct, frozen=True):
    """Says how far a receiver has been told."""

    receiver: Receiver
    status: str = Outcome.PENDING
    tries: int = 0
    last_error: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, bytes]) -> Self | None:
        """Reads the fields of a job's hash; None if nobody is to be told.

        Raises:
            ValueError: they are not a webhook's.
        """
        value = fields.get("webhook")
        if value is None:
            return None
        return cls(
            receiver=msgspec.json.decode(value, type=Receiver),
            status=fields.get("webhook_status", b"pending").decode(),
            tries=int(fields.get("webhook_tries", 0)),
            last_error=fields.get("webhook_error", b"").decode(errors="replace"),
        )
