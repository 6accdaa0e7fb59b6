"""Carry out flows: one blocks, the other awaits."""

import asyncio
import time
from typing import TypeVar

import httpx

from ferry.client.flows import Flow
from ferry.client.reaching import Reach

T = TypeVar("T")
_FAILURES = (httpx.TransportError, httpx.InvalidURL)


class Sender:
    """Sends what flows yield. Safe to use from several threads."""

    def __init__(self, reach: Reach, patience_s: float) -> None:
        self.reach = reach
        self.patience_s = patience_s
        self._http = reach.open(httpx.Client)

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """Returns what comes of the flow; raises what it raises."""
        try:
            call = next(flow)
            while True:
                time.sleep(call.delay_s)
                try:
                    response = self._http.request(**self.reach.request(call))
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
        self._http = reach.open(httpx.AsyncClient)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Returns what comes of the flow; raises what it raises."""
        try:
            call = next(flow)
            while True:
                await asyncio.sleep(call.delay_s)
                try:
                    response = await self._http.request(**self.reach.request(call))
                except _FAILURES as error:
                    call = flow.throw(self.reach.failure(error))
                else:
                    self.reach.answered()
                    call = flow.send(response)
        except StopIteration as end:
            value: T = end.value
            return value
