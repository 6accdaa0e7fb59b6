"""Answers clients with the old server's answers, and has a share of the requests mirrored."""

import asyncio
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

import httpx

from ferry.shadow.mirror import Copy, Mirror
from ferry.shadow.target import OF_CONNECTION, Target, named_by_connection, why
from ingress.http1.exchange import ConnectionEnded, Exchange
from ingress.http1.heads import WITHOUT_BODY

# An answer of announced length up to this is sent with its length; any other in pieces.
_WHOLE_BYTES = 16 * 1024 * 1024
# All that a path may have unquoted (RFC 3986, 3.3).
_SAFE = "/:@!$&'()*+,;=~-._"
# The connection to the client writes its own.
_OWN = OF_CONNECTION | {"content-length", "date"}
_BODY_FRAMING = ("content-length", "transfer-encoding")

# Why a request is not compared.
CLIENT_LEFT = "the client left"
NO_ANSWER = "no answer from the old server"


class Proxy:
    """An application of `ingress.http1`. The new server's part is all the mirror's.

    A path is sent on as it was read: `%2F` in it becomes a slash, as in this project's ingress.
    """

    def __init__(self, old: Target, mirror: Mirror) -> None:
        self._old = old
        self._mirror = mirror

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request; ends when its client leaves, as the old server is to know."""
        task = asyncio.current_task()
        exchange.on_left = task.cancel if task is not None else None
        target = quote(exchange.path, safe=_SAFE) + (f"?{exchange.query}" if exchange.query else "")
        copy = self._mirror.begin(exchange.method, target, exchange.headers)
        lost = CLIENT_LEFT
        try:
            lost = await _Forwarding(self._old, self._mirror, exchange, copy).run(target)
        finally:
            if copy is not None:
                self._mirror.end(copy, lost)


class _Forwarding:
    """One request on its way to the old server and back."""

    def __init__(self, old: Target, mirror: Mirror, exchange: Exchange, copy: Copy | None) -> None:
        self._old = old
        self._mirror = mirror
        self._exchange = exchange
        self._copy = copy

    async def run(self, target: str) -> str:
        """Returns why the client has not the whole answer; empty if it has."""
        exchange, begun_s = self._exchange, time.perf_counter()
        has_body = any(name in exchange.fields for name in _BODY_FRAMING)
        content = self._body() if has_body else b""
        try:
            request = self._old.request(exchange.method, target, exchange.headers, content)
            response = await self._old.client.send(request, stream=True)
            try:
                await self._answer(response)
            finally:
                await response.aclose()
        except ConnectionEnded:
            return CLIENT_LEFT
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._fail(error)
            return NO_ANSWER
        if self._copy is not None:
            self._copy.latency_s = time.perf_counter() - begun_s
        return ""

    async def _body(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.pieces():
            if self._copy is not None:
                self._mirror.keep(self._copy, self._copy.body, piece)
            yield bytes(piece)

    async def _answer(self, response: httpx.Response) -> None:
        exchange, copy = self._exchange, self._copy
        if copy is not None:
            copy.status, copy.answer_headers = response.status_code, response.headers.raw
        dropped = _OWN | named_by_connection(response.headers.multi_items())
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.headers.raw
            if name.decode("latin-1").lower() not in dropped
        ]
        if self._is_sent_whole(response):
            body = b"".join([piece async for piece in self._pieces(response)])
            exchange.respond(response.status_code, headers, body)
            return
        exchange.respond_in_pieces(response.status_code, headers)
        async for piece in self._pieces(response):
            await exchange.send(piece)
        exchange.end()

    def _is_sent_whole(self, response: httpx.Response) -> bool:
        if self._exchange.method == "HEAD" or self._exchange.http_version < "1.1":
            return True
        length = response.headers.get("content-length", "")
        has_none = response.status_code in WITHOUT_BODY
        return has_none or (length.isdecimal() and int(length) <= _WHOLE_BYTES)

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        async for piece in response.aiter_raw():
            if self._copy is not None:
                self._mirror.keep(self._copy, self._copy.answer_body, piece)
            if piece:  # an empty one would end the answer
                yield piece

    def _fail(self, error: Exception) -> None:
        """Tells the client that the old server is away, or that its answer is cut short."""
        if self._exchange.status:
            self._exchange.cut_off()
            return
        text = f"ferry shadow: no answer from {self._old.name}: {why(error)}\n"
        plain = ("content-type", "text/plain; charset=utf-8")
        self._exchange.respond(HTTPStatus.BAD_GATEWAY, [plain], text.encode())
