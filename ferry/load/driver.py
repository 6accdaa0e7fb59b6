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
# What a page says of an error is not for a line.
_MAX_TEXT_BYTES = 300


@dataclass(frozen=True, slots=True)
class Load:
    """How a URL is driven.

    With `rate_per_s` requests leave on time, whether or not earlier ones have been answered (open
    loop). Without it each connection sends when it has its answer (closed loop). What leaves in the
    first `warmup_s` is not measured.
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
    """What was measured. `latencies_s` are those of successes, in the order of their answers.

    `done` is how many successes count for the throughput. `reasons` has, of each status that is no
    success, the first text that came with it.
    """

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    done: int = 0
    reasons: dict[int, str] = field(default_factory=dict)

    def note(self, status: int, latency_s: float, text: str = "") -> None:
        """One request has come to its end; status NO_ANSWER when nobody answered."""
        self.statuses[status] += 1
        if _is_success(status):
            self.latencies_s.append(latency_s)
        else:
            self.reasons.setdefault(status, text)


OnProgress = Callable[[float, Outcome], None]


def drive(load: Load, on_progress: OnProgress | None = None) -> Outcome:
    """Returns what came of this load. Blocks for `warmup_s` plus `duration_s`, and a little more.

    Args:
        load: what to send.
        on_progress: told a few times a second (seconds since the start, outcome so far).

    Raises:
        ImportError: aiohttp is not installed.
    """
    return asyncio.run(_Driver(load, on_progress).run())


class _Driver:
    def __init__(self, load: Load, on_progress: OnProgress | None) -> None:
        self._load = load
        self._on_progress = on_progress
        self._outcome = Outcome()
        self._start_s = 0.0

    async def run(self) -> Outcome:
        import aiohttp  # noqa: PLC0415 - optional

        # Of our own: cookies would grow, a proxy would be measured instead of the server.
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
                    await asyncio.gather(
                        *(self._closed_loop(session) for _ in range(self._load.connections))
                    )
            finally:
                reporter.cancel()
        self._outcome.seconds = self._load.duration_s
        return self._outcome

    async def _closed_loop(self, session: "ClientSession") -> None:
        end_s = self._start_s + self._load.warmup_s + self._load.duration_s
        while (now_s := time.perf_counter()) < end_s:
            await self._ask(session, now_s)

    async def _open_loop(self, session: "ClientSession") -> None:
        asking: set[asyncio.Task[None]] = set()
        for due_s in self._arrivals():
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if len(asking) >= _MAX_OPEN:
                self._note(NO_ANSWER, due_s, b"too many requests wait for an answer")
                continue
            # From when it should have left: a client that lags behind hides no waiting.
            task = asyncio.create_task(self._ask(session, due_s))
            asking.add(task)
            task.add_done_callback(asking.discard)
        if asking:
            await asyncio.wait(asking)

    def _arrivals(self) -> Iterator[float]:
        """Yields when requests leave: at random, as if from many independent clients."""
        source = random.Random(_SEED)  # noqa: S311 - the same arrivals in each run
        due_s = self._start_s
        end_s = self._start_s + self._load.warmup_s + self._load.duration_s
        while (due_s := due_s + source.expovariate(self._load.rate_per_s)) < end_s:
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
            # A closed loop must not spin when nobody listens.
            await asyncio.sleep(0.01)
        self._note(status, begun_s, text)

    def _note(self, status: int, begun_s: float, text: bytes) -> None:
        now_s, first_s = time.perf_counter(), self._start_s + self._load.warmup_s
        # In an open loop requests leave however few are answered: those that come late, when all
        # have left, say nothing of what the server does at this rate.
        counted_s = now_s if self._load.rate_per_s else begun_s
        if _is_success(status) and first_s <= counted_s < first_s + self._load.duration_s:
            self._outcome.done += 1
        if begun_s >= first_s:
            words = "" if _is_success(status) else _one_line(text)
            self._outcome.note(status, now_s - begun_s, words)

    async def _report(self) -> None:
        while self._on_progress is not None:
            self._on_progress(time.perf_counter() - self._start_s, self._outcome)
            await asyncio.sleep(0.2)


def _is_success(status: int) -> bool:
    return NO_ANSWER < status < _FIRST_ERROR


def _one_line(text: bytes) -> str:
    return " ".join(text[:_MAX_TEXT_BYTES].decode(errors="replace").split())
