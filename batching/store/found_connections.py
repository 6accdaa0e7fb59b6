"""Connections that look for their server each time they connect, and when in doubt."""

import asyncio
import time
from typing import Any

import redis
import redis.asyncio

from batching.store.finders import Finder
from batching.store.lost_connections import (
    ASYNC_PARSER,
    PARSER,
    NoticesItsLoss,
)
from batching.store.redis_errors import NotHere
from batching.store.rq_names import RenamingPacker, received

CONNECT_TIMEOUT_S = 1.0


class FoundConnection(redis.Connection):
    """Connects to the server's present address; a frozen server has a second to greet."""

    def __init__(self, finder: Finder, **options: Any) -> None:
        super().__init__(parser_class=PARSER, **options)  # type: ignore[no-untyped-call]
        self._finder = finder
        self._opened_at = 0.0

    def connect(self) -> None:
        """Connects, also when the server has moved."""
        if self._is_open():
            self._finder.look_again()
            if self._is_elsewhere():
                self.disconnect()  # type: ignore[no-untyped-call]
        super().connect()  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Sends the command, unless the server has moved."""
        if self._is_elsewhere():
            self.disconnect()  # type: ignore[no-untyped-call]
            # Not just connected anew: a WATCH would be lost.
            raise NotHere("the server is elsewhere now")
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Returns the answer; after a time-out no older connection is trusted."""
        try:
            return super().read_response(*arguments, **options)
        except redis.TimeoutError:
            if "timeout" not in options:  # otherwise a look at a channel, which may be silent
                self._finder.doubt()
            raise

    def _is_elsewhere(self) -> bool:
        is_right = (self.host, self.port) == self._finder.address
        is_trusted = self._opened_at > self._finder.doubted_at
        return self._is_open() and not (is_right and is_trusted)

    def _is_open(self) -> bool:
        opened: Any = self._sock
        return opened is not None

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Lets the server greet for CONNECT_TIMEOUT_S only."""
        connected: Any = self._sock
        connected.settimeout(CONNECT_TIMEOUT_S)
        super().on_connect_check_health(check_health=check_health)
        connected.settimeout(self.socket_timeout)

    def _connect(self) -> Any:
        # Not in `connect`, which redis-py does not call when a held connection reconnects.
        self.host, self.port = self._finder.find()
        self._opened_at = time.monotonic()
        return super()._connect()  # type: ignore[no-untyped-call]


class FoundTlsConnection(FoundConnection, redis.SSLConnection):
    """The same with TLS."""


class RqConnection(FoundConnection):
    """Keeps RQ's keys in one slot of a cluster."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        return received(super().read_response(*arguments, **options))

    def _construct_command_packer(self, packer: Any) -> Any:
        own = super()._construct_command_packer(packer)  # type: ignore[no-untyped-call]
        return RenamingPacker(own)


class RqTlsConnection(RqConnection, redis.SSLConnection):
    """The same with TLS."""


class AsyncFoundConnection(NoticesItsLoss, redis.asyncio.Connection):
    """As `FoundConnection`."""

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(parser_class=ASYNC_PARSER, **options)
        self._finder = finder

    async def connect(self) -> None:
        if self.is_connected:
            await self._finder.look_again_async()
            if self.is_elsewhere:
                await self.disconnect()
        await super().connect()  # type: ignore[no-untyped-call]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self.is_elsewhere:
            await self.disconnect()
            raise NotHere("the server is elsewhere now")
        await super().send_packed_command(command, check_health)

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]
        """Returns whether the server has another address by now."""
        return (self.host, self.port) != self._finder.address and bool(self.is_connected)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await super().on_connect_check_health(check_health=check_health)
        except TimeoutError:
            raise redis.TimeoutError(f"{self.host}:{self.port} does not greet") from None

    async def _connect(self) -> None:
        self.host, self.port = await self._finder.find_async()
        await super()._connect()


class AsyncFoundTlsConnection(AsyncFoundConnection, redis.asyncio.SSLConnection):
    """The same with TLS."""
