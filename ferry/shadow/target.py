"""One of the two servers, as a client sees it."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import httpx

from ferry.shadow.comparison import Answer
from ferry.shadow.recording import Request

CONNECT_TIMEOUT_S = 10.0
MOST_ANSWER_BYTES = 256 * 1024 * 1024
# They belong to one connection, or to one way of sending a body.
OF_CONNECTION = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Not every client knows all ways to compress, and both servers are to send the same.
_OF_BODY = frozenset({"accept-encoding", "content-length"})
Headers = Sequence[tuple[str, str]]
Content = bytes | AsyncIterator[bytes]


class Target:
    """A server at a URL. `authorization`, if any, takes the place of the request's own.

    `timeout_s`: how long a whole answer to a recorded request may take.
    """

    def __init__(self, url: str, authorization: Mapping[str, str], timeout_s: float) -> None:
        """Raises ValueError if the URL is not one of a server."""
        self._url = url.rstrip("/")
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"not a URL like http://host:port: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
            raise ValueError(f"not a URL like http://host:port: {url}")
        self.name = str(parsed.copy_with(userinfo=b"", path="/")).rstrip("/")
        self._authorization = dict(authorization)
        self._timeout_s = timeout_s
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            verify=httpx.create_ssl_context(),
            trust_env=False,  # past any proxy, as the load of `ferry bench`
        )

    def request(
        self, method: str, target: str, headers: Headers, content: Content = b""
    ) -> httpx.Request:
        """Returns the request for this server, without the headers of another connection."""
        lines = [(name.encode(), value.encode()) for name, value in self._authorization.items()]
        dropped = OF_CONNECTION | self._authorization.keys() | named_by_connection(headers)
        kept = [(name, value) for name, value in headers if name.lower() not in dropped]
        lines += [(name.encode(), value.encode()) for name, value in kept]
        return httpx.Request(method, self._url + target, headers=lines, content=content)

    async def send(self, recorded: Request) -> Answer:
        """Sends a recorded request; the answer may be that there is none.

        Raises:
            OSError: the file of its body cannot be read.
        """
        body = recorded.content()
        headers = [one for one in recorded.headers if one[0].lower() not in _OF_BODY]
        request = self.request(recorded.method, recorded.path, headers, body)
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self.client.send(request, stream=True)
                try:
                    content = await _whole(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            return Answer(failure=f"none within {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return Answer(failure=why(error))
        latency_s = time.perf_counter() - begun_s
        content_type = response.headers.get("content-type", "")
        return Answer(response.status_code, content_type, content, latency_s)


async def _whole(response: httpx.Response) -> bytes:
    pieces = bytearray()
    async for piece in response.aiter_bytes():
        pieces += piece
        if len(pieces) > MOST_ANSWER_BYTES:
            raise httpx.ReadError(f"it has more than {MOST_ANSWER_BYTES} bytes")
    return bytes(pieces)


def named_by_connection(headers: Headers) -> set[str]:
    """Returns the headers that `connection` says are its own, too."""
    values = [value for name, value in headers if name.lower() == "connection"]
    return {name.strip().lower() for name in ",".join(values).split(",")}


def why(error: BaseException) -> str:
    """Returns the reason in a few words: those of the first cause, if it has any."""
    cause = error
    while (earlier := cause.__cause__ or cause.__context__) is not None:
        cause = earlier
    return str(cause) or str(error) or type(error).__name__
