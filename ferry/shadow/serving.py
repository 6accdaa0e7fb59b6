"""Runs the proxy until it is told to stop."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from urllib.parse import urlsplit

from batching.process.stop_signals import StopEvents
from batching.settings.settings import Settings, SettingsError
from ferry.shadow.mirror import Mirror
from ferry.shadow.proxy import Proxy
from ferry.shadow.target import Target
from ingress.http1.listener import Address, Listener
from ingress.role import Role, parse_address
from ingress.torchserve.answers import error_answer

# Clients, and then the copies that still wait, have this long at the end.
_DRAIN_S = 10.0
# While answers are compared, clients wait for Python's lock no longer than this.
_SWITCH_S = 0.0005
# A client keeps its connection as long as the old server lets it.
_PATIENT = Settings(idle_timeout_s=3600.0, unread_timeout_s=3600.0)


def listening_address(text: str) -> Address:
    """Returns the address that `HOST:PORT` names.

    Raises:
        SettingsError: it names none.
    """
    try:
        has_port = urlsplit(f"http://{text}").port is not None
    except ValueError:
        has_port = False
    if not has_port:
        raise SettingsError(f"{text!r}: write HOST:PORT")
    return parse_address(f"http://{text}", Role.INFERENCE)


class Serving:
    """A listener for clients, and workers that send copies to the new server."""

    def __init__(
        self, address: Address, old: Target, new: Target, mirror: Mirror, workers: int
    ) -> None:
        self._address = address
        self._old = old
        self._new = new
        self._mirror = mirror
        self._workers = workers

    async def run_until_signal(
        self, duration_s: float | None, show: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Runs until SIGTERM or SIGINT, or for this long; a second signal ends the drain.

        Raises:
            UnusableNow: as `run`.
        """
        signals = StopEvents()
        signals.listen()
        if duration_s is not None:
            asyncio.get_running_loop().call_later(duration_s, signals.stop.set)
        await self.run(signals, show)

    async def run(
        self, signals: StopEvents, show: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Serves until it is told to stop; then finishes what has begun, unless told to hurry.

        Args:
            signals: tell it.
            show: is called once clients can connect, and runs beside it.

        Raises:
            UnusableNow: the address is in use, or not this machine's.
        """
        proxy = Proxy(self._old, self._mirror)
        listener = Listener(self._address, proxy, error_answer, settings=_PATIENT)
        background: list[asyncio.Task[None]] = []
        try:
            await listener.start()
            background = [asyncio.create_task(self._mirror.run()) for _ in range(self._workers)]
            background.append(asyncio.create_task(show()))
            sys.setswitchinterval(_SWITCH_S)
            await signals.stop.wait()
            listener.stop()
            await _first(listener.wait_closed(), signals.hurry.wait())
            await _first(self._mirror.drain(), signals.hurry.wait())
            self._mirror.count_rest()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._old.client.aclose()
            await self._new.client.aclose()


async def _first(*waiting: Coroutine[None, None, object]) -> None:
    """Waits until one of these has come, or it is late."""
    tasks = [asyncio.create_task(one) for one in waiting]
    await asyncio.wait(tasks, timeout=_DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
