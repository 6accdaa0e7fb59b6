"""Answers clients with the old server's answers; sends a share of the requests to the new one, too.

Copies are sent and compared in the background, so that nothing the new server does harms a client.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import httpx
from aiohttp import web

from ferry_moving.comparison import ComparedAnswer, compare
from ferry_moving.recording import RecordedRequest, Recorder
from ferry_moving.report import Result

# Of all copies together; larger copies are not compared.
MOST_BYTES = 256 * 1024 * 1024
_CONNECT_TIMEOUT_S = 10.0
# Clients, and then the copies that still wait, have this long at the end.
_DRAIN_S = 10.0
# A client keeps its connection as long as the old server lets it.
_IDLE_S = 3600.0
# While answers are compared, clients wait for Python's lock no longer than this.
_SWITCH_S = 0.0005
# Headers of one connection, or of one way of sending a body.
_OF_CONNECTION = frozenset(
    {"connection", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
# Clients differ in the compressions they know, and both servers should use the same.
_OF_BODY = frozenset({"accept-encoding", "content-length"})

Headers = Sequence[tuple[str, str]]
CLIENT_LEFT = "the client left"
NO_ANSWER = "no answer from the old server"


class TargetServer:
    """Sends requests to a server. `token`, if any, takes the place of the request's own.

    `timeout_s` limits a whole answer to a recorded request.
    """

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        """Raises ValueError if the URL is not one of a server."""
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"not a URL like http://host:port: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
            raise ValueError(f"not a URL like http://host:port: {url}")
        self._token = token
        self._timeout_s = timeout_s
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            verify=httpx.create_ssl_context(),
            trust_env=False,  # past any proxy: latencies are compared
        )

    def request(
        self, method: str, target: str, headers: Headers, content: bytes | AsyncIterator[bytes]
    ) -> httpx.Request:
        """Returns the request for this server, without the headers of another connection."""
        lines = [
            (name.encode(), value.encode("utf-8", "surrogateescape"))
            for name, value in passed_on(headers)
            if not (self._token and name.lower() == "authorization")
        ]
        if self._token:
            lines.append((b"authorization", f"Bearer {self._token}".encode()))
        return httpx.Request(method, self.url + target, headers=lines, content=content)

    async def send(self, recorded: RecordedRequest) -> ComparedAnswer:
        """Sends a recorded request; without an answer, returns one with a `failure`.

        Raises:
            OSError: the file of its body cannot be read.
        """
        headers = [header for header in recorded.headers if header[0].lower() not in _OF_BODY]
        request = self.request(recorded.method, recorded.path, headers, recorded.content())
        begun_s = time.perf_counter()
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s), self.sending(request) as response:
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        return ComparedAnswer(failure=f"it has more than {MOST_BYTES} bytes")
        except TimeoutError:
            return ComparedAnswer(failure=f"none within {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return ComparedAnswer(failure=why(error))
        latency_s = time.perf_counter() - begun_s
        content_type = response.headers.get("content-type", "")
        return ComparedAnswer(response.status_code, content_type, bytes(body), latency_s)

    @contextlib.asynccontextmanager
    async def sending(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        response = await self.client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


def passed_on(headers: Headers) -> Headers:
    """Returns the headers without those of one connection."""
    own = ",".join(value for name, value in headers if name.lower() == "connection")
    dropped = _OF_CONNECTION | {name.strip().lower() for name in own.split(",")}
    return [header for header in headers if header[0].lower() not in dropped]


def why(error: BaseException) -> str:
    """Returns the text of the error's first cause, or of the error itself."""
    cause = error
    while (earlier := cause.__cause__ or cause.__context__) is not None:
        cause = earlier
    return str(cause) or str(error) or type(error).__name__


@dataclass(slots=True)
class Copy:
    """Collects a request and the old server's answer to it."""

    request: RecordedRequest
    body: list[bytes] = field(default_factory=list)
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    answer_body: list[bytes] = field(default_factory=list)
    latency_s: float = 0.0
    size_bytes: int = 0
    is_too_large: bool = False

    def answer(self) -> ComparedAnswer:
        """Returns the old server's answer, decompressed if possible."""
        body = b"".join(self.answer_body)
        with contextlib.suppress(httpx.DecodingError):
            body = httpx.Response(self.status, headers=self.headers, content=body).content
        return ComparedAnswer(
            self.status, self.headers.get("content-type", ""), body, self.latency_s
        )


class Proxy:
    """Handles the requests of aiohttp's server, and compares copies. Lives on one event loop.

    A `share` of all requests, from 0 to 1, is copied, `most_open` at a time; others are counted.
    """

    def __init__(
        self,
        old: TargetServer,
        new: TargetServer,
        result: Result,
        *,
        share: float,
        most_open: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.targets = (old, new)
        self._old = old
        self._new = new
        self._result = result
        self._share = share
        self._most_open = most_open
        self._recorder = recorder
        self._open = self._held_bytes = self._count = 0
        self._whole: asyncio.Queue[Copy] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one request; when its client leaves, aiohttp cancels this and so the old call."""
        headers = list(request.headers.items())
        copy = self._copy_of(request, headers)
        lost = CLIENT_LEFT
        try:
            response, lost = await self._forward(request, headers, copy)
        finally:
            if copy is not None:
                self._end(copy, lost)
        return response

    async def _forward(
        self, request: web.Request, headers: Headers, copy: Copy | None
    ) -> tuple[web.StreamResponse, str]:
        """Returns the answer, and why it cannot be compared; "" if it can."""
        begun_s = time.perf_counter()
        pieces = self._kept(request.content.iter_any(), copy, copy.body if copy else [])
        response: web.StreamResponse | None = None
        try:
            sent = self._old.request(
                request.method, request.raw_path, headers, pieces if request.body_exists else b""
            )
            async with self._old.sending(sent) as received:
                if copy is not None:
                    copy.status, copy.headers = received.status_code, received.headers
                response = _OldAnswer(received)
                await response.prepare(request)
                answer_body = copy.answer_body if copy else []
                async for piece in self._kept(received.aiter_raw(), copy, answer_body):
                    await response.write(piece)
                await response.write_eof()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if response is None:
                complaint = f"ferry shadow: no answer from {self._old.url}: {why(error)}\n"
                return web.Response(status=HTTPStatus.BAD_GATEWAY, text=complaint), NO_ANSWER
            if request.transport is not None:
                request.transport.abort()  # so that the client sees that its answer is cut short
            return response, NO_ANSWER
        if copy is not None:
            copy.latency_s = time.perf_counter() - begun_s
        return response, ""

    def _copy_of(self, request: web.Request, headers: Headers) -> Copy | None:
        """Returns a copy to fill with this request; None if it is not compared."""
        self._count += 1
        if random.random() >= self._share:  # noqa: S311 - a sample
            return None
        if self._open >= self._most_open:
            self._result.uncompared["more than --queue at a time"] += 1
            return None
        self._open += 1
        return Copy(RecordedRequest(self._count, request.method, request.raw_path, headers))

    async def _kept(
        self, pieces: AsyncIterator[bytes], copy: Copy | None, kept: list[bytes]
    ) -> AsyncIterator[bytes]:
        """Yields the pieces of a body, and keeps them for the copy while there is room."""
        async for piece in pieces:
            if copy is not None:
                copy.is_too_large |= self._held_bytes + len(piece) > MOST_BYTES
                if not copy.is_too_large:
                    kept.append(piece)
                    copy.size_bytes += len(piece)
                    self._held_bytes += len(piece)
            yield piece

    def _end(self, copy: Copy, lost: str) -> None:
        if reason := lost or ("too large" if copy.is_too_large else ""):
            self._result.uncompared[reason] += 1
            self._release(copy)
        else:
            self._whole.put_nowait(copy)

    def _release(self, copy: Copy) -> None:
        self._open -= 1
        self._held_bytes -= copy.size_bytes

    async def compare_copies(self) -> None:
        """Compares copies, one after the other, until it is cancelled."""
        while True:
            copy = await self._whole.get()
            try:
                await self._compare(copy)
            except Exception as error:  # whatever this copy holds, the next ones are compared
                self._result.uncompared[f"{type(error).__name__} while comparing"] += 1
            self._release(copy)
            self._whole.task_done()

    async def _compare(self, copy: Copy) -> None:
        request = replace(copy.request, body=b"".join(copy.body))
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.write, request)
        new = await self._new.send(request)
        old = copy.answer()
        # In a thread, so that clients are served meanwhile.
        compared = await asyncio.to_thread(compare, old, new, self._result.tolerance)
        self._result.add(request, old, new, compared)

    async def finish(self) -> None:
        """Waits up to _DRAIN_S until all copies are compared; counts the rest."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._whole.join(), _DRAIN_S)
        if self._open:
            self._result.uncompared["the end came first"] += self._open


class _OldAnswer(web.StreamResponse):
    """Answers with exactly the old server's headers."""

    def __init__(self, received: httpx.Response) -> None:
        headers = [
            (name.decode("ascii"), value.decode("utf-8", "surrogateescape"))
            for name, value in received.headers.raw
        ]
        super().__init__(status=received.status_code, headers=passed_on(headers))
        self.received = received


async def _add_nothing(_request: web.Request, response: web.StreamResponse) -> None:
    """Takes back what aiohttp adds to the old server's headers."""
    for name in ("content-type", "server"):
        if isinstance(response, _OldAnswer) and name not in response.received.headers:
            response.headers.popall(name, None)


async def serve(
    proxy: Proxy,
    address: tuple[str, int],
    connections: int,
    stop: asyncio.Event,
    show: Callable[[], Coroutine[None, None, None]],
) -> None:
    """Serves until `stop`, and finishes what has begun; runs `show` once clients can connect.

    At most `connections` copies at a time are on their way to the new server.

    Raises:
        OSError: the address is in use, or not this machine's.
    """
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", proxy.answer)
    application.on_response_prepare.append(_add_nothing)
    runner = web.AppRunner(
        application,
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,
        keepalive_timeout=_IDLE_S,
        shutdown_timeout=_DRAIN_S,
    )
    background: list[asyncio.Task[None]] = []
    try:
        await runner.setup()
        await web.TCPSite(runner, *address).start()
        background = [asyncio.create_task(proxy.compare_copies()) for _ in range(connections)]
        background.append(asyncio.create_task(show()))
        sys.setswitchinterval(_SWITCH_S)
        await stop.wait()
        await runner.cleanup()
        await proxy.finish()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for target in proxy.targets:
            await target.client.aclose()
