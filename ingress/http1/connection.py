"""HTTP/1.1 on one connection: its requests are answered one after the other.

A client's cost is bounded: heads and bodies in bytes and time (`heads`, `exchange`); a connection
without a request, and an answer that is not read, in time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

from batching.errors import MethodNotAllowed, ServeError
from ingress.http1.exchange import (
    Body,
    ConnectionEnded,
    Content,
    Exchange,
    Header,
    HttpAnswer,
    MakeRoom,
)
from ingress.http1.heads import (
    CHUNKED,
    WITHOUT_BODY,
    RequestParser,
    Unreadable,
    head_bytes,
)

log = logging.getLogger(__name__)

# As a reset, sent to a client that still sends, may keep it from seeing why it was refused.
LINGER_S = 1.0

# A client that sends no more has left, or only says that its request is whole: then it gets an
# answer that comes this soon.
HALF_CLOSED_S = 0.1

# Pipelined requests that may wait for the one before them. A connection with more is read no
# further, and ends with their answers.
MAX_WAITING = 256

# A client that announces megabytes and sends nothing gets no more memory than this.
_FIRST_BODY_BYTES = 256 * 1024

_LARGE_BYTES = 64 * 1024

_LOWEST_ERROR = HTTPStatus.BAD_REQUEST.value  # Python 3.11 compares numbers faster than members

# A client with more unread bytes than this is behind. uvloop's own limit over TLS is higher.
_AHEAD_BYTES = 64 * 1024

_UNKNOWN_METHOD = "Requested method is not allowed, please refer to API document."


class HttpConnection(asyncio.BufferedProtocol):
    """A client's connection. A request that comes early waits until those before are answered.

    `client` and `server` are the two ends' addresses and ports, empty on a unix socket.
    """

    def __init__(self, host: Any) -> None:  # a Listener, whose file imports this one
        self.client = self.server = ""
        self.scheme = host.scheme
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser: RequestParser | None = RequestParser(
            self, host.settings.max_header_size_bytes
        )
        self._asked: deque[Exchange] = deque()  # the first one is being answered
        self._held: list[bytes] = []
        self._unsent: list[Body] = []
        self._body: _WholeBody | None = None  # that of the last request, while it is read
        self._is_paused = False
        self._is_last = False  # no further request is read
        self._is_behind = False  # the client reads too slowly; the next request waits
        self._drained: asyncio.Future[None] | None = None
        # How long the client has kept the server waiting. Looked at seldom, as most are never late.
        self._timer: asyncio.TimerHandle | None = None
        self._silent_since_s = self._loop.time()

    def close_if_idle(self) -> None:
        if self._asked or self._parser is None or self._parser.is_in_head:
            return
        self.send()
        self._transport.close()
        if self.scheme == "https":
            # The transport waits for the client's farewell, and a client that reads only when it
            # asks again sends none.
            self._loop.call_later(LINGER_S, self._host.forget, self)

    def refuse_incomplete(self, error: ServeError) -> None:
        """Answers the request whose body is still to come, or to end."""
        if self._asked and not self._asked[0].is_received:
            self._asked[0].respond(*self._host.error_answer(error))

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        # Kept, as the transport forgets them when the connection is reset.
        self.client = _host_and_port(transport.get_extra_info("peername"))
        self.server = _host_and_port(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(_AHEAD_BYTES)
        self._host.add(self, transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(self._host.settings.idle_timeout_s, self._look)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Returns where to read next: the buffer that all share, or a body's own."""
        return self._host.read_buffer if self._body is None else self._body.free()

    def buffer_updated(self, count: int) -> None:
        if self._body is None:
            self._take(self._host.read_buffer[:count])
        elif self._body.add(count):
            whole, self._body = self._body.content, None
            if self._parser is not None:
                self._parser.pass_over_body()
            self._asked[-1].receive(whole)

    def eof_received(self) -> bool:
        """Ends requests whose rest is missing; returns whether they can still be answered."""
        self._is_last = True
        self.send()
        for exchange in list(self._asked):
            exchange.break_off()
        if self._asked:
            self._loop.call_later(HALF_CLOSED_S, self._asked[0].leave)
        # asyncio cannot close one half of a TLS connection.
        return bool(self._asked) and bool(self._transport.can_write_eof())

    def connection_lost(self, _error: Exception | None) -> None:
        """Ends the requests that are still running for this client."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_behind = False
        self.resume_writing()
        asked, self._asked = self._asked, deque()
        for exchange in asked:
            exchange.break_off()
            exchange.leave()
        if self._parser is not None:
            self._parser.end()
            self._parser = None
        self._host.forget(self)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)
        if self._is_behind:
            self._is_behind = False
            self._go_on()

    def _take(self, data: memoryview | bytes) -> None:
        """Feeds the parser; pauses reading while an answer is pending."""
        if self._asked and self._asked[-1].is_received:
            self._held.append(bytes(data))
            self.take_no_more()
        elif self._asked or not self._is_last:
            self._parse(data)
            if len(self._asked) > 1:
                # The rest of the last request is read when its turn comes.
                self.take_no_more()
            if self._asked and not self._asked[0].is_served:
                if self._drained is None:
                    self._serve_first()
                else:
                    self._is_behind = True

    def _parse(self, data: memoryview | bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed(data)
        except Unreadable as error:
            self._is_last = True
            if not self._asked:
                self._refuse(error.answer)
            elif not self._asked[-1].is_received:
                self._asked[-1].break_off()

    def _refuse(self, answer: HttpAnswer) -> None:
        """Answers bytes that no application can be shown, and closes the connection."""
        if self._transport.is_closing():
            return
        if answer.status == MethodNotAllowed.status:
            answer = self._host.error_answer(MethodNotAllowed(_UNKNOWN_METHOD))
        framing = f"content-length: {len(answer.body)}"
        head = head_bytes(answer.status, answer.headers, keeps_alive=False, framing=framing)
        self.write(head, answer.body)
        self._host.note_answer(answer.status, self.client, None)
        self._close(is_all_read=False)

    def _look(self) -> None:
        """Closes the connection if its client has been silent for too long."""
        now_s, silence_s = self._loop.time(), self._host.settings.idle_timeout_s
        if self._transport.get_write_buffer_size():
            self._silent_since_s = now_s  # the kernel ends the connection if the client never reads
        left_s = self._silent_since_s + silence_s - now_s
        is_clients_turn = not self._asked or self._is_behind
        if is_clients_turn and left_s <= 0:
            self._transport.close()
        else:
            look_s = left_s if is_clients_turn else silence_s
            self._timer = self._loop.call_later(look_s, self._look)

    def _close(self, *, is_all_read: bool) -> None:
        """Closes the connection after the written bytes have been sent."""
        if is_all_read or self._transport.is_closing():
            self._transport.close()
            return
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # the client has left while nothing was read
            self._transport.abort()
            return
        self.take_more()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._transport.close)

    # --- the requests' side

    def take_request(self, exchange: Exchange) -> None:
        if not self._is_last:
            self._asked.append(exchange)
            self._is_last = not exchange.keeps_alive or len(self._asked) > MAX_WAITING

    def take_more(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def take_no_more(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def read_into_place(
        self,
        length_bytes: int,
        received: Sequence[Content | memoryview],
        make_room: MakeRoom | None,
    ) -> None:
        """Reads the rest of the last request's body into a buffer of its own, or that room."""
        room = None if make_room is None else make_room(length_bytes)
        self._body = _WholeBody(length_bytes, received, room)

    def answer(
        self, exchange: Exchange, status: int, headers: Sequence[Header], body: Body
    ) -> None:
        """Sends the answer, if the client is still there.

        A small one leaves with all others of this turn of the event loop. Otherwise the client of a
        batch's first answer takes the core, and the others wait.
        """
        framing = f"content-length: {len(body)}"
        if exchange.method == "HEAD" or status in WITHOUT_BODY:
            body, framing = b"", ""
        head = self._head(exchange, status, headers, framing)
        if self._asked and self._asked[0] is exchange:
            if len(body) >= _LARGE_BYTES or len(self._asked) > 1 or not exchange.keeps_alive:
                self.write(head, body)
            else:
                if not self._unsent:
                    self._host.send_soon(self)
                self._unsent.append(head + body)
        self._end(exchange)

    def send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)

    def write(self, *pieces: Body) -> None:
        """Writes these pieces, behind what was left for the end of the turn."""
        self._unsent += pieces
        self.send()

    async def stream(
        self,
        exchange: Exchange,
        status: int,
        headers: Sequence[Header],
        pieces: AsyncIterator[bytes],
    ) -> None:
        self.write(self._head(exchange, status, headers, CHUNKED))
        is_whole = False
        try:
            async for piece in pieces:
                await self._write_piece(exchange, piece)
            is_whole = True
        finally:
            if not is_whole:
                exchange.keeps_alive = False
            elif self._is_answering(exchange):
                self._transport.write(b"0\r\n\r\n")
            self._end(exchange)

    async def _write_piece(self, exchange: Exchange, piece: bytes) -> None:
        if not self._is_answering(exchange):
            raise ConnectionEnded
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        while (drained := self._drained) is not None:
            unsent_bytes = self._transport.get_write_buffer_size()
            await asyncio.wait({drained}, timeout=self._host.settings.unread_timeout_s)
            if not drained.done() and self._transport.get_write_buffer_size() >= unsent_bytes:
                log.info("stream broken off: the client has read nothing for unread_timeout")
                self._transport.abort()
                raise ConnectionEnded

    def _head(
        self, exchange: Exchange, status: int, headers: Sequence[Header], framing: str
    ) -> bytes:
        # Source: TorchServe 0.12: errors close the connection.
        exchange.keeps_alive = keeps_alive = (
            status < _LOWEST_ERROR
            and exchange.keeps_alive
            and exchange.is_received
            and not self._host.is_draining
            and not (self._is_last and len(self._asked) == 1)
        )
        added = self._host.added_headers
        head = head_bytes(status, headers, added, keeps_alive=keeps_alive, framing=framing)
        exchange.status = status
        return head

    def _is_answering(self, exchange: Exchange) -> bool:
        return bool(self._asked) and self._asked[0] is exchange

    def _end(self, exchange: Exchange) -> None:
        """Goes from this request, which has its answer, to the next one."""
        exchange.is_ended = True
        # It leads back to the exchange, and only the collector would take such a cycle apart.
        exchange.on_left = None
        self._host.note_answer(exchange.status, self.client, exchange)
        if not self._is_answering(exchange):
            return  # its client has left
        self._asked.popleft()
        if not self._asked:
            self._body = None  # of one that was answered before it was whole
        is_last = self._host.is_draining or (self._is_last and not self._asked)
        if is_last or not exchange.keeps_alive:
            self._is_last = True
            is_all_read = (
                exchange.is_received and not self._held and not self._asked and not self._is_paused
            )
            self._asked.clear()
            self._held.clear()
            self._close(is_all_read=is_all_read)
            return
        self._silent_since_s = self._loop.time()
        if self._asked or self._held or self._is_paused:
            self._go_on()

    def _go_on(self) -> None:
        """Serves the next request once the client has read the answers before it."""
        if self._asked and self._drained is not None:
            self._is_behind = True
        elif self._asked:
            # Later, or hundreds that are answered at once would each be served by the one before.
            self._loop.call_soon(self._serve_first)
        else:
            held, self._held = self._held, []
            self.take_more()
            for data in held:
                self._take(data)

    def _serve_first(self) -> None:
        if not self._asked or self._asked[0].is_served:
            return
        self._asked[0].is_served = True
        self._host.serve(self._asked[0])


class _WholeBody:
    """A body of announced length, read from the socket into the very bytes that are sent on.

    No two requests share one, so none is ever written to again.
    """

    def __init__(
        self, length_bytes: int, received: Sequence[Content | memoryview], room: memoryview | None
    ) -> None:
        # What came together with the head is less than the whole.
        self._length_bytes = length_bytes
        self._filled_bytes = sum(map(len, received))
        first_bytes = min(length_bytes, max(_FIRST_BODY_BYTES, 2 * self._filled_bytes))
        self.content = bytearray(first_bytes) if room is None else room
        start = 0
        for chunk in received:
            self.content[start : start + len(chunk)] = chunk
            start += len(chunk)

    def free(self) -> memoryview:
        """Returns the place for the bytes that come next, never empty before the body is whole."""
        content, filled_bytes = self.content, self._filled_bytes
        if isinstance(content, bytearray) and filled_bytes == len(content) < self._length_bytes:
            content.extend(bytes(min(self._length_bytes - filled_bytes, filled_bytes)))
        return memoryview(content)[filled_bytes:]

    def add(self, count: int) -> bool:
        """Notes bytes that were read; returns whether the body is whole."""
        self._filled_bytes += count
        return self._filled_bytes == self._length_bytes


def _host_and_port(address: Any) -> str:
    if not isinstance(address, tuple):
        return ""  # a unix socket
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
