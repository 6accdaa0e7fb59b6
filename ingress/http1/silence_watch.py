"""Closes a connection whose client keeps it waiting."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any


class SilenceWatch:
    """Watches one connection; looks at it seldom, as most clients are never too late.

    Args:
        loop: the connection's.
        silence_s: how long a client may send no request, and read nothing of an answer.
        is_clients_turn: says whether the server waits for the client now.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        silence_s: float,
        is_clients_turn: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._silence_s = silence_s
        self._is_clients_turn = is_clients_turn
        self._silent_since_s = loop.time()
        self._unsent_bytes = sys.maxsize  # at the last look
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: Any) -> None:
        """Watches the client behind this transport."""
        self._transport = transport
        self._timer = self._loop.call_later(self._silence_s, self._look)

    def note_answer(self) -> None:
        """Gives the client its whole time again."""
        self._silent_since_s = self._loop.time()

    def close_in(self, seconds: float) -> None:
        """Closes the connection after this time, whatever the client does."""
        self.end()
        self._timer = self._loop.call_later(seconds, self._transport.close)

    def end(self) -> None:
        """Watches no more, and lets go of the connection, which holds this watch."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_clients_turn = lambda: False

    def _look(self) -> None:
        now_s = self._loop.time()
        unsent_bytes = self._transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:
            self._silent_since_s = now_s  # the client reads
        self._unsent_bytes = unsent_bytes
        end_s = self._silent_since_s + self._silence_s
        is_clients_turn = self._is_clients_turn()
        if is_clients_turn and now_s >= end_s:
            self._transport.close()
        else:
            again_s = end_s - now_s if is_clients_turn else self._silence_s
            self._timer = self._loop.call_later(again_s, self._look)
