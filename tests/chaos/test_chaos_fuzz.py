"""F43: bytes that were a request once, beside clients whose requests are valid."""

import asyncio
import contextlib
import random
import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil
import pytest
import uvloop

from tests.chaos.mutated_requests import MARK, Case, some_case
from tests.chaos.patterned_clients import Found, Line, visits
from tests.chaos.patterned_requests import FILES, Plan, wrong
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig
from tests.support import came_true

MIB = 1024 * 1024
ATTACKERS = 16
VALID_CLIENTS = 4
ENDS_S = 20.0  # a connection whose client sends no more
NONCE = re.compile(rb"%b-[0-9a-f]{16};" % MARK.encode())
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@dataclass
class Fuzzed:
    """What was sent, and what came back of it."""

    seed: int
    cases: int = 0
    nonces: set[bytes] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    def next_case(self) -> tuple[str, Case]:
        seed = f"{self.seed} {self.cases}"
        self.cases += 1
        case = some_case(seed, "fuzz")
        self.nonces.add(case.nonce)
        return seed, case

    def judge(self, seed: str, case: Case, answer: bytes) -> None:
        """Notes what is wrong about these answers."""
        statuses = [int(status) for status in STATUS.findall(answer)]
        self.statuses.update(statuses)
        if 500 in statuses:
            self.faults.append(f"case {seed!r}: {answer[:300]!r}")
        if set(NONCE.findall(answer)) & (self.nonces - {case.nonce}):
            self.faults.append(f"case {seed!r} got bytes of another one")


async def attack(port: int, fuzzed: Fuzzed, until: float) -> None:
    """Sends one case after the other."""
    while time.monotonic() < until and not fuzzed.faults:
        seed, case = fuzzed.next_case()
        line = await Line.open(port)
        try:
            fuzzed.judge(seed, case, await exchange(line, case))
        except TimeoutError:
            fuzzed.faults.append(f"case {seed!r}: its connection does not end")
        finally:
            line.leave(with_reset=case.with_reset)


async def exchange(line: Line, case: Case) -> bytes:
    """Sends the case; returns what comes until the connection ends or its client leaves."""
    for start, end in zip((0, *case.cuts), (*case.cuts, len(case.data)), strict=True):
        line.write(case.data[start:end])
        await asyncio.sleep(0)
    if case.is_leaving:
        await asyncio.sleep(0.01)
        return b""
    line.end_sending()
    async with asyncio.timeout(ENDS_S):
        return await line.read_to_end()


async def watch(pid: int, fuzzed: Fuzzed, until: float, every_s: float) -> None:
    process = psutil.Process(pid)
    while time.monotonic() < until and not fuzzed.faults:
        fuzzed.rss_bytes.append(process.memory_info().rss)
        await asyncio.sleep(every_s)


async def fuzz(rig: Rig, fuzzed: Fuzzed, seconds: float) -> Found:
    """Lets attackers and valid clients loose on the server; returns what the valid ones saw."""
    until = time.monotonic() + seconds
    is_over = lambda _: time.monotonic() >= until or bool(fuzzed.faults)  # noqa: E731
    plan = Plan(("fuzz",), abort_share=0, half_close_share=0, error_share=0, large_share=0.1)
    others = [asyncio.create_task(attack(rig.port, fuzzed, until)) for _ in range(ATTACKERS)]
    others.append(asyncio.create_task(watch(rig.process.pid, fuzzed, until, seconds / 150)))
    found = await visits(rig.port, plan, fuzzed.seed, clients=VALID_CLIENTS, until=is_over)
    if found.faults:
        for task in others:
            task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*others)
    return found


@pytest.mark.timeout(900)
def test_f43_mutated_requests_harm_no_valid_client(rig, record_promise):
    seconds = 600.0 if is_long() else 20.0
    fuzzed = Fuzzed(seed=random.randrange(2**32))
    options = {"files": FILES, "workers": 2, "batch_size": 8, "max_batch_delay": 2}
    with rig.serve("fuzz", **options) as model:
        # When
        found = uvloop.run(fuzz(rig, fuzzed, seconds))

        # Then each valid client has its own answers, and no other one comes
        third = len(fuzzed.rss_bytes) // 3
        before, after = (
            statistics.median(part)
            for part in (fuzzed.rss_bytes[third : 2 * third], fuzzed.rss_bytes[2 * third :])
        )
        record_promise(
            "F43 answers",
            f"{seconds:.0f} s, {fuzzed.cases:,} mutated: {found.answered:,} right, "
            f"{len(found.faults)} wrong, slowest {found.slowest_s:.2f} s",
        )
        record_promise("F43 memory", f"{before / MIB:.1f} -> {after / MIB:.1f} MB")
        assert (found.faults, fuzzed.faults) == ([], []), f"seed {fuzzed.seed}"
        assert found.answered == found.sent

        # And nothing stays of the others
        assert after <= 1.1 * before + 10 * MIB
        assert came_true(lambda: model.open_requests() == 0, 20)
        assert wrong(model.ledger.path) == ""
        assert "Traceback" not in rig.process.log()
