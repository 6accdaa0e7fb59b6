"""Carry out flows: one blocks, the other awaits."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import httpx

from ferry.client.flows import Flow
from ferry.client.reaching import Reach

T = TypeVar("T")
H = TypeVar("H")
_FAILURES = (httpx.TransportError, httpx.InvalidURL)


class Spares(Generic[H]):
    """HTTP clients of which each sends one request at a time, so that it has one connection.

    httpx looks at all connections of a client whenever a request begins or ends: with 64 of them
    that took more time than all the rest.
    """

    def __init__(self, reach: Reach, kind: Callable[..., H]) -> None:
        self._reach = reach
        self._kind = kind
        self._spare = [reach.open(kind)]  # at once: it tells what is wrong with the environment

    @contextlib.contextmanager
    def one(self) -> Iterator[H]:
        """Lends a client; the one that was used last is the likeliest to be connected."""
        try:
            http = self._spare.pop()
        except IndexError:
            http = self._reach.open(self._kind)
        try:
            yield http
        finally:
            self._spare.append(http)

    def take_all(self) -> list[H]:
        """Returns those that are not in use, to be closed."""
        found, self._spare = self._spare, []
        return found


class Sender:
    """Sends what flows yield. Safe to use from several threads."""

    def __init__(self, reach: Reach, patience_s: float) -> None:
        self.reach = reach
        self.patience_s = patience_s
        self._spares = Spares(reach, httpx.Client)

    def close(self) -> None:
        for http in self._spares.take_all():
            http.close()

    def run(self, flow: Flow[T]) -> T:
        """Returns what comes of the flow; raises what it raises."""
        try:
            call = next(flow)
            while True:
                time.sleep(call.delay_s)
                try:
                    with self._spares.one() as http:
                        response = http.request(**self.reach.request(call))
                except _FAILURES as error:
                    call = flow.throw(self.reach.failure(error))
                else:
                    self.reach.answered()
                    call = flow.send(response)
        except StopIteration as end:
            value: T = end.value
            return value


class AsyncSender:
    """Sends what flows yield, on one event loop."""

    def __init__(self, reach: Reach, patience_s: float) -> None:
        self.reach = reach
        self.patience_s = patience_s
        self._spares = Spares(reach, httpx.AsyncClient)

    async def close(self) -> None:
        for http in self._spares.take_all():
            await http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Returns what comes of the flow; raises what it raises."""
        try:
            call = next(flow)
            while True:
                await asyncio.sleep(call.delay_s)
                try:
                    with self._spares.one() as http:
                        response = await http.request(**self.reach.request(call))
                except _FAILURES as error:
                    call = flow.throw(self.reach.failure(error))
                else:
                    self.reach.answered()
                    call = flow.send(response)
        except StopIteration as end:
            value: T = end.value
            return value
