"""A waiting client's place in a channel."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from batching.protocol import Reply

ClientGone = Callable[[], Awaitable[object]]


class ClientLeft(Exception):
    """The client closed its connection; the request was cancelled."""


class Pieces(Protocol):
    """An answer that comes in pieces, as far as a pending request deals with it."""

    def poke(self) -> None:
        """Tells the reader that there may be something to read."""


class PendingRequest:
    """A waiting client's place: the request and the future of its reply.

    `entered_at` and `deadline` are the event loop's time. A request that Redis lost enters anew,
    under another id and with its old deadline. An answer that comes in pieces gets a second waiter,
    for its rest, whose `stream` they belong to.
    """

    __slots__ = (
        "deadline",
        "entered_at",
        "is_queued",
        "is_resubmitted",
        "reply",
        "request_id",
        "stream",
        "timeout_s",
        "timer",
        "wire",
    )

    def __init__(
        self,
        request_id: str,
        wire: bytes,
        timeout_s: float,
        entered_at: float,
        reply: asyncio.Future[Reply | Pieces],
    ) -> None:
        self.request_id = request_id
        self.wire = wire
        self.timeout_s = timeout_s
        self.entered_at = entered_at
        self.deadline = entered_at + timeout_s
        self.reply = reply
        self.is_queued = False
        self.is_resubmitted = False
        self.stream: Pieces | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_given_up(self) -> bool:
        """Returns whether nobody waits for the reply any more, although none came."""
        return self.reply.cancelled() or (self.reply.done() and self.reply.exception() is not None)

    def resolve(self, reply: Reply | Pieces) -> None:
        """Resolves the request with this reply, unless it has an outcome already."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Fails the request with this error, unless it has an outcome already."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def leave(self) -> None:
        """Nobody waits any more: lists that still have it keep no body."""
        if self.is_queued:  # otherwise a submit that is being repeated still needs it
            self.wire = b""

    def enter_anew(self, request_id: str, entered_at: float) -> None:
        """Redis lost the request; it has not been submitted yet, under this id."""
        self.request_id = request_id
        self.entered_at = entered_at
        self.is_queued = False
        self.is_resubmitted = True
