"""A request on its way to its one outcome, which comes as a call."""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Protocol

from batching.protocol import NO_WIRE, Reply, Wire

log = logging.getLogger(__name__)


class ClientLeft(Exception):
    """The client closed its connection; the request was cancelled."""


class Pieces(Protocol):
    """An answer that comes in pieces, as far as a pending request deals with it."""

    async def close(self) -> None: ...


class Channel(Protocol):
    """Names what a pending request needs of its channel."""

    def leave(self, request: "PendingRequest") -> None: ...


class PendingRequest(ABC):
    """A request that gets one call of `on_reply` or of `on_error`. Lives on one event loop.

    Subclasses say what these do. `entered_at` and `deadline` are the event loop's time, 0 until the
    request is submitted. A request that Redis lost enters anew, under another id and with its old
    deadline.
    """

    # What holds for most is the class's until it changes.
    wire: Wire = NO_WIRE
    timeout_s = entered_at = deadline = 0.0
    channel: Channel | None = None
    is_queued = is_resubmitted = False
    is_late = False  # its deadline has passed; it is being cancelled
    is_over = False  # has its outcome
    is_given_up = False  # has its outcome, which is no reply
    is_stream = False  # an answer in pieces is the pending request of its own rest

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    @abstractmethod
    def on_reply(self, reply: Reply | Pieces) -> None:
        """Takes the reply; one in pieces is to be closed."""

    @abstractmethod
    def on_error(self, error: Exception) -> None:
        """Takes the reason why there will be no reply: a ServeError, or ClientLeft."""

    def leave(self) -> None:
        """Gives the request up, as its client waits no more."""
        if self.is_over:
            return
        if self.channel is None:
            self.fail(ClientLeft())
        else:
            self.channel.leave(self)

    def enter_anew(self, request_id: str, now: float) -> None:
        """Makes the request one that was not submitted yet, under another id."""
        self.request_id = request_id
        self.entered_at = now
        self.is_queued = False
        self.is_resubmitted = True

    def resolve(self, reply: Reply | Pieces) -> None:
        """Ends the request with this reply, unless it has an outcome already."""
        if not self.is_over:
            self.is_over = True
            self.wire = NO_WIRE  # lists may hold the request for longer
            try:
                self.on_reply(reply)
            except Exception:  # another request's reply comes next
                log.exception("reply not taken request=%s", self.request_id)

    def fail(self, error: Exception) -> None:
        """Ends the request with this error, unless it has an outcome already."""
        if not self.is_over:
            self.is_over = self.is_given_up = True
            self.wire = NO_WIRE  # lists may hold the request for longer
            try:
                self.on_error(error)
            except Exception:  # as above
                log.exception("error not taken request=%s", self.request_id)


class AwaitedRequest(PendingRequest):
    """A request whose client is a coroutine, which calls `outcome`."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self._outcome: asyncio.Future[Reply | Pieces] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: Reply | Pieces) -> None:
        if not self._outcome.done():
            self._outcome.set_result(reply)

    def on_error(self, error: Exception) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    async def outcome(self) -> Reply | Pieces:
        """Returns the reply, or raises the error; a cancellation gives the request up."""
        try:
            return await self._outcome
        except asyncio.CancelledError:
            self.leave()
            raise
