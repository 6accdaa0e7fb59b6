"""HTTP/1.1 on one connection: its requests are answered one after the other.

A client's cost is bounded: heads and bodies in bytes and time (`request_parser`, `exchange`,
`body_reader`); a connection without a request, and an answer that is not read, in time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from ingress.http1.exchange import Answer, Body, ConnectionEnded, Exchange, Header
from ingress.http1.head import CHUNKED, CONTINUE, WITHOUT_BODY, head_bytes
from ingress.http1.host import HttpHost
from ingress.http1.peer import is_sent, place_of
from ingress.http1.request_parser import RequestParser, UnknownMethod, Unreadable
from ingress.http1.silence_watch import SilenceWatch
from ingress.http1.whole_body import WholeBody

log = logging.getLogger(__name__)

# A socket that is closed while the client still sends answers with a reset, and the client may
# never see why it was refused. So the rest is read for a while.
LINGER_S = 1.0

# A client that sends no more has left, or only says that its request is whole. One of the second
# kind gets an answer that comes this soon.
HALF_CLOSED_S = 0.1

# Pipelined requests that may wait for the one before them. A connection with more is read no
# further, and ends with their answers.
MAX_WAITING = 256

_LARGE_BYTES = 64 * 1024

_LOWEST_ERROR = HTTPStatus.BAD_REQUEST.value  # Python 3.11 compares numbers faster than members

# A client with more unread bytes than this is behind. uvloop's own limit over TLS is higher.
_AHEAD_BYTES = 64 * 1024


class HttpConnection(asyncio.BufferedProtocol):
    """A client's connection. A request that comes early waits until those before are answered.

    `client` and `server` are the two ends' addresses and ports, empty on a unix socket.
    """

    def __init__(self, host: HttpHost) -> None:
        self.client = self.server = ""
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser: RequestParser | None = RequestParser(
            self, self._on_request, host.settings.max_header_size_bytes
        )
        self._asked: deque[Exchange] = deque()  # the first one is being answered
        self._held: list[bytes] = []
        self._unsent: list[Body] = []
        self._body: WholeBody | None = None  # the last one's, which is read in place
        self._is_paused = False
        self._is_last = False  # no further request is read
        self._is_half_closed = False  # the client sends no more
        self._is_behind = False  # the client reads too slowly; the next request is not begun
        self._silence = SilenceWatch(
            self._loop, host.settings.idle_timeout_s, self._waits_for_client
        )
        self._drained: asyncio.Future[None] | None = None

    @property
    def scheme(self) -> str:
        """Returns http or https."""
        return self._host.scheme

    def close_if_idle(self) -> None:
        """Closes the connection, unless it has a request."""
        if self._asked or self._parser is None or self._parser.is_in_head:
            return
        self.send()
        has_all = is_sent(self._transport)
        self._transport.close()
        if self.scheme == "https" and has_all:
            # The transport waits for the client's farewell, and a client that reads only when it
            # asks again sends none.
            self._host.forget(self)

    def refuse_incomplete(self, answer: Answer) -> None:
        """Answers a request whose body is still to come, or to end."""
        if self._asked and not self._asked[0].is_received:
            self._asked[0].respond(*answer)

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for the first request."""
        self._transport = transport
        # Kept, as the transport forgets them when the connection is reset.
        self.client = place_of(transport.get_extra_info("peername"))
        self.server = place_of(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(_AHEAD_BYTES)
        self._host.connections.add(self)
        self._silence.begin(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the place for what is read next: the one that all share, or a body's own."""
        del sizehint
        return self._host.read_buffer if self._body is None else self._body.free()

    def buffer_updated(self, count: int) -> None:
        """Takes what was read, before anything else is read into the same place."""
        if self._body is None:
            self._take(self._host.read_buffer[:count])
        elif self._body.add(count):
            whole, self._body = self._body.content, None
            if self._parser is not None:
                self._parser.pass_over_body()
            self._asked[-1].receive(whole)

    def eof_received(self) -> bool:
        """Ends the requests whose rest is missing; returns whether they can still be answered."""
        self._is_last = self._is_half_closed = True
        self.send()
        for exchange in list(self._asked):
            exchange.break_off()
        if self._asked:
            self._loop.call_later(HALF_CLOSED_S, self._asked[0].leave)
        # asyncio cannot close one half of a TLS connection.
        return bool(self._asked) and bool(self._transport.can_write_eof())

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the requests that are still running for this client."""
        del error
        self._silence.end()
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
        """Notes that the client is behind with reading."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Goes on when the client has caught up."""
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
            if self._asked and not self._asked[0].is_begun:
                if self._drained is None:
                    self._begin(self._asked[0])
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
                is_known = not isinstance(error, UnknownMethod)
                self._refuse(error.answer if is_known else self._host.unknown_method())
            elif not self._asked[-1].is_received:
                self._asked[-1].break_off()

    def _refuse(self, answer: Answer) -> None:
        """Answers bytes that no application can be shown, and closes the connection."""
        if self._transport.is_closing():
            return
        framing = f"content-length: {len(answer.body)}"
        head = head_bytes(answer.status, answer.headers, keeps_alive=False, framing=framing)
        self._write(head, answer.body)
        self._host.on_refused(self.client, answer.status)
        self._close(is_all_read=False)

    def _waits_for_client(self) -> bool:
        return not self._asked or self._is_behind

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
        self._silence.close_in(LINGER_S)

    # --- the requests' side

    def take_more(self) -> None:
        """Resumes reading from the client."""
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def take_no_more(self) -> None:
        """Pauses reading from the client."""
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def read_into(self, body: WholeBody) -> None:
        """Reads the rest of the last request's body into its own buffer."""
        self._body = body

    def say_continue(self) -> None:
        """Tells the client to send its body."""
        self._write(CONTINUE)

    def answer(
        self, exchange: Exchange, status: int, headers: Sequence[Header], body: Body
    ) -> None:
        """Sends the answer, if the client is still there.

        A small one is written together with all others of this turn of the event loop. Otherwise
        the client of a batch's first answer takes the core, and the others wait.
        """
        framing = f"content-length: {len(body)}"
        if exchange.method == "HEAD" or status in WITHOUT_BODY:
            body, framing = b"", ""
        head = self._head(exchange, status, headers, framing)
        exchange.status = status
        if self._asked and self._asked[0] is exchange:
            if len(body) >= _LARGE_BYTES or len(self._asked) > 1 or not exchange.keeps_alive:
                self._write(head, body)
            else:
                if not self._unsent:
                    self._host.send_soon(self)
                self._unsent.append(head + body)
        self._end(exchange)

    def send(self) -> None:
        """Writes the answers that were left for the end of the turn."""
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)

    def _write(self, *pieces: Body) -> None:
        self._unsent += pieces
        self.send()

    def stream(self, exchange: Exchange, status: int, headers: Sequence[Header]) -> None:
        """Sends the head of an answer in pieces."""
        head = self._head(exchange, status, headers, CHUNKED)
        exchange.status = status
        if self._is_answering(exchange):
            self._write(head)

    async def write_piece(self, exchange: Exchange, piece: bytes) -> None:
        """Sends a piece of this answer; returns when the client is not far behind.

        Raises:
            ConnectionEnded: the client has gone, or has read nothing for too long.
        """
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

    def end_stream(self, exchange: Exchange) -> None:
        """Tells the client that it has all pieces."""
        if self._is_answering(exchange):
            self._transport.write(b"0\r\n\r\n")
        self._end(exchange)

    def cut_off(self, exchange: Exchange) -> None:
        """Closes the connection after the pieces that were written."""
        exchange.keeps_alive = False
        self._end(exchange)

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
        return head_bytes(status, headers, added, keeps_alive=keeps_alive, framing=framing)

    def _on_request(self, exchange: Exchange) -> None:
        if self._is_last:
            return
        self._asked.append(exchange)
        self._is_last = not exchange.keeps_alive or len(self._asked) > MAX_WAITING

    def _begin(self, exchange: Exchange) -> None:
        """Has the application answer this request, for which the client now waits."""
        exchange.is_begun = True
        if self._is_half_closed:
            self._loop.call_later(HALF_CLOSED_S, exchange.leave)
        self._host.serve(exchange)

    def _is_answering(self, exchange: Exchange) -> bool:
        return bool(self._asked) and self._asked[0] is exchange

    def _end(self, exchange: Exchange) -> None:
        """Goes from this request, which has its answer, to the next one."""
        exchange.is_ended = True
        # It leads back to the exchange, and only the collector would take such a cycle apart.
        exchange.on_left = None
        self._host.on_answered(exchange)
        if not self._asked or self._asked[0] is not exchange:
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
        self._silence.note_answer()
        if self._asked or self._held or self._is_paused:
            self._go_on()

    def _go_on(self) -> None:
        """Begins the next request once the client has read the answers before it."""
        if self._asked and self._drained is not None:
            self._is_behind = True
        elif self._asked:
            # Later, or hundreds that are answered at once would each be begun by the one before.
            self._loop.call_soon(self._begin_first)
        else:
            held, self._held = self._held, []
            self.take_more()
            for data in held:
                self._take(data)

    def _begin_first(self) -> None:
        if self._asked and not self._asked[0].is_begun:
            self._begin(self._asked[0])
