"""Carries out flows over HTTP, one blocking and one awaiting; says why no server was reached."""

import asyncio
import contextlib
import ipaddress
import os
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from ferry_client.calls import Call
from ferry_client.errors import FerryError, ServerUnreachable
from ferry_client.flows import Flow

CONNECT_TIMEOUT_S = 5.0
# From the environment and not from an option: every user of a machine can read its command lines.
TOKEN_VARIABLE = "FERRY_TOKEN"  # noqa: S105 - its name

H = TypeVar("H")
T = TypeVar("T")
_FAILURES = (httpx.TransportError, httpx.InvalidURL)


class Endpoint:
    """Knows one server's address and token, and makes httpx clients for it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self.token = token_of(TOKEN_VARIABLE) if token is None else token
        # A server that never answered is not waited for: its address may be wrong.
        self._has_answered = False
        self._context: ssl.SSLContext | None = None

    def open(self, kind: Callable[..., H]) -> H:
        """Returns an httpx client of this kind.

        Raises:
            ServerUnreachable: the environment names a proxy or certificates that cannot be used.
        """
        try:
            return kind(
                headers={"authorization": f"Bearer {self.token}"} if self.token else {},
                verify=self._certificates(),
                trust_env=not is_this_machine(self.url),
            )
        except (ImportError, ValueError, OSError) as error:
            raise ServerUnreachable(
                why_not_opened(error), was_sent=False, may_pass=False
            ) from error

    def _certificates(self) -> ssl.SSLContext:
        if self._context is None:
            # This reads SSL_CERT_FILE, even with `trust_env=False`.
            self._context = httpx.create_ssl_context()
        return self._context

    def request(self, call: Call) -> dict[str, Any]:
        """Returns the arguments of httpx's `request` that send this call."""
        return {
            "method": call.method,
            "url": self.url + call.path,
            "headers": call.headers,
            "content": call.content,
            "timeout": httpx.Timeout(call.answer_timeout_s, connect=CONNECT_TIMEOUT_S),
        }

    def answered(self) -> None:
        """Notes that there is a server at this address."""
        self._has_answered = True

    def failure(self, error: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """Returns the caller's error for an error of httpx."""
        is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        is_wrong = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
        return ServerUnreachable(
            why_not_sent(self.url, error),
            was_sent=not (is_unsent or is_wrong),
            may_pass=self._has_answered and not is_wrong and _tls_error(error) is None,
        )


def token_of(variable: str) -> str:
    """Returns the token that the environment has under this name; empty without one.

    Raises:
        FerryError: it has characters that no token has.
    """
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise FerryError(f"{variable} has characters that no token has")
    return token


class ClientPool(Generic[H]):
    """Lends HTTP clients, each for one request at a time, so that each has one connection.

    httpx looks at all connections of a client when a request begins or ends: with 64 connections
    that took more time than all the rest.
    """

    def __init__(self, endpoint: Endpoint, kind: Callable[..., H]) -> None:
        self._endpoint = endpoint
        self._kind = kind
        self._idle = [endpoint.open(kind)]  # at once: it reports what is wrong with the environment

    @contextlib.contextmanager
    def one(self) -> Iterator[H]:
        """Lends a client, preferably the last used, which is the likeliest to be connected."""
        try:
            http = self._idle.pop()
        except IndexError:
            http = self._endpoint.open(self._kind)
        try:
            yield http
        finally:
            self._idle.append(http)

    def take_all(self) -> list[H]:
        """Returns the idle clients, to be closed."""
        idle, self._idle = self._idle, []
        return idle


class Sender:
    """Sends what flows yield. Safe to use from several threads."""

    def __init__(self, endpoint: Endpoint, patience_s: float) -> None:
        self.endpoint = endpoint
        self.patience_s = patience_s
        self._clients = ClientPool(endpoint, httpx.Client)

    def close(self) -> None:
        for http in self._clients.take_all():
            http.close()

    def send(self, call: Call) -> httpx.Response:
        """Returns the answer to one request, whatever its status.

        Raises:
            ServerUnreachable: there is none.
        """
        time.sleep(call.delay_s)
        try:
            with self._clients.one() as http:
                response = http.request(**self.endpoint.request(call))
        except _FAILURES as error:
            raise self.endpoint.failure(error) from error
        self.endpoint.answered()
        return response

    def run(self, flow: Flow[T]) -> T:
        """Sends each call of the flow, and returns its result; raises what the flow raises."""
        try:
            call = next(flow)
            while True:
                try:
                    response = self.send(call)
                except ServerUnreachable as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(response)
        except StopIteration as end:
            value: T = end.value
            return value


class AsyncSender:
    """Sends what flows yield, on one event loop."""

    def __init__(self, endpoint: Endpoint, patience_s: float) -> None:
        self.endpoint = endpoint
        self.patience_s = patience_s
        self._clients = ClientPool(endpoint, httpx.AsyncClient)

    async def close(self) -> None:
        for http in self._clients.take_all():
            await http.aclose()

    async def send(self, call: Call) -> httpx.Response:
        """Returns the answer to one request, as `Sender.send`."""
        await asyncio.sleep(call.delay_s)
        try:
            with self._clients.one() as http:
                response = await http.request(**self.endpoint.request(call))
        except _FAILURES as error:
            raise self.endpoint.failure(error) from error
        self.endpoint.answered()
        return response

    async def run(self, flow: Flow[T]) -> T:
        """Sends each call of the flow, and returns its result; raises what the flow raises."""
        try:
            call = next(flow)
            while True:
                try:
                    response = await self.send(call)
                except ServerUnreachable as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(response)
        except StopIteration as end:
            value: T = end.value
            return value


def is_this_machine(url: str) -> bool:
    """Returns whether the URL leads to a server here, which no proxy can reach."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_opened(error: Exception) -> str:
    """Returns a sentence that says why no connection can be tried at all."""
    return f"a proxy or certificates that the environment names cannot be used: {error}"


def why_not_sent(base_url: str, error: httpx.TransportError | httpx.InvalidURL) -> str:
    """Returns a sentence that says why there was no answer."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return _why_not_connected(base_url, error)
        case httpx.TimeoutException():
            return f"no answer from {base_url} in time"
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return f"not a URL like http://host:port: {base_url}"
    return f"the connection to {base_url} broke: {error}"


def _why_not_connected(base_url: str, failure: httpx.TransportError) -> str:
    error = _tls_error(failure)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {base_url} is not trusted: {error.verify_message}. "
            "SSL_CERT_FILE names a file with certificates that are"
        )
    if error is not None:
        return f"no TLS at {base_url} ({error.reason}): is it http://?"
    return f"nothing answers at {base_url} ({failure}): is the server running?"


def _tls_error(failure: BaseException) -> ssl.SSLError | None:
    error: BaseException | None = failure
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
