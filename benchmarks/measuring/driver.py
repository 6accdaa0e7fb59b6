"""Sends requests to one URL, as fast as they are answered or at a rate of their own."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import ClientSession

# More than any server answers late; what is still open then counts as unanswered.
ANSWER_TIMEOUT_S = 60.0
NO_ANSWER = 0

_FIRST_ERROR = 400
# An open loop must not fill this machine's memory when the server has stopped answering.
_MAX_OPEN = 20_000
_SEED = 20240117
# An error's page may be long; its first words are enough for a line.
_MAX_TEXT_BYTES = 300


@dataclass(frozen=True, slots=True)
class Load:
    """How a URL is driven.

    With `rate_per_s`, requests leave on time, whether or not earlier ones have been answered (open
    loop). Without it, each connection sends when it has its answer (closed loop). Requests that
    leave in the first `warmup_s` are not measured.
    """

    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 16
    rate_per_s: float = 0.0
    duration_s: float = 10.0
    warmup_s: float = 1.0


@dataclass(slots=True)
class Outcome:
    """What was measured.

    `latencies_s` are those of successes, in the order of their answers; `done` counts the successes
    that make up the throughput. `reasons` has the first text of each status that is no success.
    """

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    done: int = 0
    reasons: dict[int, str] = field(default_factory=dict)


OnProgress = Callable[[float, Outcome], None]


def drive(load: Load, on_progress: OnProgress | None = None) -> Outcome:
    """Applies the load. Blocks for `warmup_s` plus `duration_s`, and a little more.

    Args:
        load: what to send.
        on_progress: called a few times a second with the seconds since the start and the outcome
            so far.

    Raises:
        ImportError: aiohttp is not installed.
    """
    return asyncio.run(_Driver(load, on_progress).run())


class _Driver:
    def __init__(self, load: Load, on_progress: OnProgress | None) -> None:
        self._load = load
        self._on_progress = on_progress
        self._outcome = Outcome(seconds=load.duration_s)
        self._start_s = 0.0

    async def run(self) -> Outcome:
        import aiohttp  # noqa: PLC0415 - optional

        # A session of our own: cookies would grow, and a proxy would be measured with the server.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._load.connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            headers=dict(self._load.headers),
            skip_auto_headers=("content-type",),
        ) as session:
            self._start_s = time.perf_counter()
            reporter = asyncio.create_task(self._report())
            try:
                if self._load.rate_per_s > 0:
                    await self._open_loop(session)
                else:
                    loops = [self._closed_loop(session) for _ in range(self._load.connections)]
                    await asyncio.gather(*loops)
            finally:
                reporter.cancel()
        return self._outcome

    @property
    def _first_s(self) -> float:
        return self._start_s + self._load.warmup_s

    @property
    def _end_s(self) -> float:
        return self._first_s + self._load.duration_s

    async def _closed_loop(self, session: "ClientSession") -> None:
        while (now_s := time.perf_counter()) < self._end_s:
            await self._ask(session, now_s)

    async def _open_loop(self, session: "ClientSession") -> None:
        asking: set[asyncio.Task[None]] = set()
        for due_s in self._arrivals():
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if len(asking) >= _MAX_OPEN:
                self._note(NO_ANSWER, due_s, b"too many requests wait for an answer")
                continue
            # Its time counts from when it should have left: a client that lags hides no waiting.
            task = asyncio.create_task(self._ask(session, due_s))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)

    def _arrivals(self) -> Iterator[float]:
        """Yields when requests leave: at random, as if from many independent clients."""
        source = random.Random(_SEED)
        due_s = self._start_s
        while (due_s := due_s + source.expovariate(self._load.rate_per_s)) < self._end_s:
            yield due_s

    async def _ask(self, session: "ClientSession", begun_s: float) -> None:
        import aiohttp  # noqa: PLC0415 - optional

        status, text = NO_ANSWER, b""
        try:
            async with session.post(self._load.url, data=self._load.body) as response:
                text = await response.read()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = (str(error) or type(error).__name__).encode()
            # A closed loop must not spin when no server listens.
            await asyncio.sleep(0.01)
        self._note(status, begun_s, text)

    def _note(self, status: int, begun_s: float, text: bytes) -> None:
        now_s, outcome = time.perf_counter(), self._outcome
        is_success = NO_ANSWER < status < _FIRST_ERROR
        # In an open loop requests leave however few are answered. Answers that come after the last
        # one has left say nothing about what the server does at this rate.
        counted_s = now_s if self._load.rate_per_s else begun_s
        if is_success and self._first_s <= counted_s < self._end_s:
            outcome.done += 1
        if begun_s < self._first_s:
            return
        outcome.statuses[status] += 1
        if is_success:
            outcome.latencies_s.append(now_s - begun_s)
        elif status not in outcome.reasons:
            words = text[:_MAX_TEXT_BYTES].decode(errors="replace").split()
            outcome.reasons[status] = " ".join(words)

    async def _report(self) -> None:
        while self._on_progress is not None:
            self._on_progress(time.perf_counter() - self._start_s, self._outcome)
            await asyncio.sleep(0.2)
