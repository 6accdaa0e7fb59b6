"""Sends a message to its receiver, without becoming a proxy into the local network.

As for downloads of archives: the host is resolved once, all its addresses must be public, and the
connection goes to an address that was checked. A second question to the resolver is what DNS
rebinding waits for.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx

from batching.webhooks import DEFAULT_PORTS, ReceiverRules
from workers.webhooks.messages import Message

TRY_S = 15.0
_MOST_ANSWER_BYTES = 65_536
_REST_S = 2.0  # for the body of an answer

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Heard(NamedTuple):
    """What a receiver answered; status 0 and the reason, if it did not."""

    status: int
    retry_after: str = ""
    error: str = ""


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of the host.

    Raises:
        OSError, UnicodeError: it has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Delivery:
    """Posts to receivers that the rules allow. `resolve` is the network; tests bring their own."""

    def __init__(
        self, rules: ReceiverRules, context: ssl.SSLContext, resolve: Resolve = resolve
    ) -> None:
        self._rules = rules
        self._resolve = resolve
        # No proxy from the environment: it would resolve the name once more. No connection is kept:
        # it would be one to whom the name led a while ago.
        self._client = httpx.AsyncClient(
            verify=context,
            timeout=TRY_S,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def post(self, url: str, message: Message) -> Heard:
        """Tries once, for TRY_S at most."""
        try:
            async with asyncio.timeout(TRY_S):
                return await self._post(url, message)
        except TimeoutError:
            return Heard(0, error=f"no answer within {TRY_S:.0f} s")
        except ValueError as error:  # UnicodeError too: a name longer than names may be
            return Heard(0, error=str(error))
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            return Heard(0, error=f"{type(error).__name__}: {error}".rstrip(": "))

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _post(self, url: str, message: Message) -> Heard:
        parts = self._rules.check_url(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        addresses = await self._resolve(host, port)
        self._rules.check_addresses(host, addresses)
        failure: httpx.ConnectError = httpx.ConnectError("host does not resolve")
        for address in addresses:
            request = self._client.build_request(
                "POST",
                httpx.URL(url).copy_with(host=address),
                content=message.body,
                headers={**message.headers, "host": parts.netloc, "accept-encoding": "identity"},
                # TLS asks for the name, not the address, and checks its certificate.
                extensions={"sni_hostname": host.rstrip(".")},
            )
            try:
                answer = await self._client.send(request, stream=True)
            except httpx.ConnectError as error:
                failure = error
                continue
            try:
                await _read_some(answer)
            finally:
                await answer.aclose()
            return Heard(answer.status_code, answer.headers.get("retry-after", ""))
        raise failure


async def _read_some(answer: httpx.Response) -> None:
    """Reads the answer's body up to a bound, so that an honest receiver can finish writing.

    Its status has been heard: what goes wrong from here on does not matter.
    """
    size_bytes = 0
    with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
        async with asyncio.timeout(_REST_S):
            async for chunk in answer.aiter_raw():
                size_bytes += len(chunk)
                if size_bytes > _MOST_ANSWER_BYTES:
                    return
