"""A request whose client waits for its reply."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from batching.protocol import NO_WIRE, Reply, Wire

ClientGone = Callable[[], Awaitable[object]]


class ClientLeft(Exception):
    """The client closed its connection; the request was cancelled."""


class Pieces(Protocol):
    """An answer that comes in pieces, as far as a pending request deals with it."""

    def poke(self) -> None:
        """Tells the reader that there may be something to read."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request and the future of its reply.

    `entered_at` and `deadline` are the event loop's time. A request that Redis lost enters anew,
    under another id and with its old deadline. An answer that comes in pieces gets a second pending
    request, for its rest, whose `stream` they belong to.
    """

    request_id: str
    wire: Wire
    timeout_s: float
    entered_at: float
    reply: asyncio.Future[Reply | Pieces]
    deadline: float = field(init=False)
    is_queued: bool = False
    is_resubmitted: bool = False
    stream: Pieces | None = None
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.deadline = self.entered_at + self.timeout_s

    @property
    def is_given_up(self) -> bool:
        """Returns whether the client waits no more although no reply came."""
        return self.reply.cancelled() or (self.reply.done() and self.reply.exception() is not None)

    def resolve(self, reply: Reply | Pieces) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Fails the request with this error, unless it has an outcome already."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def leave(self) -> None:
        """Drops the body once the client waits no more: lists may hold the request for longer."""
        if self.is_queued:  # otherwise a submit that is being repeated still needs it
            self.wire = NO_WIRE

    def enter_anew(self, request_id: str, entered_at: float) -> None:
        """Makes the request one that was not submitted yet, under another id."""
        self.request_id = request_id
        self.entered_at = entered_at
        self.is_queued = False
        self.is_resubmitted = True
