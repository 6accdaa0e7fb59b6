"""Clients that check every byte of their answers, and leave when it suits them least."""

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from tests.chaos.patterned_requests import (
    Asked,
    Plan,
    WrongAnswer,
    check,
    refusal,
    some_request,
    split,
)

ANSWER_S = 60.0
MOST_FAULTS = 20
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no farewell, a reset
FAREWELL = struct.pack("ii", 0, 0)
GIVEN_UP = 499
AGAIN_S = 0.05  # between two tries to connect to a server that has died


@dataclass
class Found:
    """What all clients of a run saw together."""

    sent: int = 0
    aborted: int = 0  # requests whose client left before it had their answers
    answered: int = 0
    lost: int = 0  # connections that the server has ended
    refused: Counter[str] = field(default_factory=Counter)  # by status and reason
    names: list[str] = field(default_factory=list)  # of those that were answered with 200
    request_ids: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def blame(self, text: str) -> None:
        """Keeps the first faults."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


class Line:
    """One connection to the inference port."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> Self:
        end = socket.socket()
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(end, (host, port))
        except OSError:
            end.close()
            raise
        line = cls(end)
        line._reader, line._writer = await asyncio.open_connection(sock=end)
        return line

    async def send(self, chance: random.Random, data: bytes) -> None:
        """Sends the data, in most cases in one piece."""
        most = 1 if chance.random() < 2 / 3 else 4
        for piece in split(chance, data, most):
            self.write(piece)
            await asyncio.sleep(0 if most == 1 else chance.choice((0, 0.001)))

    def write(self, data: bytes) -> None:
        """Sends the data, if the server is still there."""
        with contextlib.suppress(OSError, RuntimeError):  # the other one is uvloop's
            self._writer.write(data)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Returns status and headers of the next answer."""
        status = 100
        while status == 100:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split()[1])
        pairs = [line.partition(": ") for line in head[1:] if line]
        return status, {name.lower(): value for name, _, value in pairs}

    async def read_body(self, headers: dict[str, str]) -> bytes:
        """Returns the body of the answer whose head was read last."""
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        pieces = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(pieces)

    async def read_some(self, size_bytes: int) -> None:
        await self._reader.read(size_bytes)

    async def read_to_end(self) -> bytes:
        """Returns what comes until the connection ends, with or without a farewell."""
        pieces = []
        with contextlib.suppress(OSError):  # more kinds of it than ConnectionError
            while piece := await self._reader.read(65536):
                pieces.append(piece)
        return b"".join(pieces)

    def end_sending(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    def leave(self, *, with_reset: bool) -> None:
        """Closes the connection, whatever lies in it."""
        with contextlib.suppress(OSError):  # the server was faster
            linger = RESET if with_reset else FAREWELL
            self._end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()


class Visitor:
    """One client after the other; each has a connection, and ends it as its plan says."""

    def __init__(self, port: int, chance: random.Random, plan: Plan, found: Found) -> None:
        self._port = port
        self._chance = chance
        self._plan = plan
        self._found = found

    async def visit(self) -> None:
        """Opens a connection, asks on it now and again, and leaves."""
        try:
            line = await Line.open(self._port)
        except OSError:
            if not self._plan.has_faults:
                raise
            await asyncio.sleep(AGAIN_S)
            return
        try:
            await self._stay(line)
        except WrongAnswer as error:
            self._found.blame(str(error))
        except TimeoutError:
            self._found.blame("no answer")
        except (OSError, EOFError) as error:
            self._found.lost += 1
            if not self._plan.has_faults:
                self._found.blame(f"connection lost at request {self._found.sent}: {error!r}")
        finally:
            line.leave(with_reset=self._chance.random() < 0.5)

    async def _stay(self, line: Line) -> None:
        is_leaving = self._chance.random() < self._plan.abort_share
        for _ in range(self._chance.randint(1, 3)):
            if not await self._ask(line):
                return
        if is_leaving:
            await self._ask_and_leave(line)

    def _some(self) -> list[Asked]:
        chance = self._chance
        count = 1 if chance.random() < 0.5 else chance.randint(2, self._plan.most_at_once)
        asked = [some_request(chance, self._plan) for _ in range(count)]
        self._found.sent += count
        return asked

    async def _ask(self, line: Line) -> bool:
        """Sends requests and reads their answers; returns whether more can be sent."""
        chance, asked = self._chance, self._some()
        has_error = chance.random() < self._plan.error_share
        if has_error:
            asked.insert(0, some_request(chance, self._plan, has_error=True))
            self._found.sent += 1
        await line.send(chance, b"".join(one.raw for one in asked))
        is_half_closed = chance.random() < self._plan.half_close_share
        if is_half_closed:
            line.end_sending()
        for number, one in enumerate(asked):
            try:
                is_answered, is_last = await self._read(line, one, may_be_given_up=is_half_closed)
            except ConnectionError:
                if not has_error:
                    raise
                # The server waits a second for clients that send on. This one was slower.
                is_answered, is_last = False, True
            if is_last:
                # What is behind an error gets no answer.
                self._found.aborted += len(asked) - number - is_answered
                return False
        return not is_half_closed

    async def _read(
        self, line: Line, asked: Asked, *, may_be_given_up: bool = False
    ) -> tuple[bool, bool]:
        """Checks an answer; returns whether it is one, and whether the connection ends with it.

        A client that has closed its half of the connection may have left: it is told so, or gets
        its answer if that was on its way.
        """
        began_s = time.monotonic()
        async with asyncio.timeout(ANSWER_S):
            status, headers = await line.read_head()
            body = await line.read_body(headers)
        self._found.slowest_s = max(self._found.slowest_s, time.monotonic() - began_s)
        if may_be_given_up and status == GIVEN_UP:
            return False, True
        if self._plan.has_faults and status >= 500:
            self._found.refused[refusal(asked, status, headers, body)] += 1
            return True, headers["connection"] == "close"
        check(asked, status, headers, body)
        if headers["x-request-id"] in self._found.request_ids:
            raise WrongAnswer(f"{asked.name}: the id of another answer")
        self._found.request_ids.add(headers["x-request-id"])
        self._found.answered += 1
        if status == 200:
            self._found.names.append(asked.name)
        return True, headers["connection"] == "close"

    async def _ask_and_leave(self, line: Line) -> None:
        """Leaves while a body is sent, while the answers are awaited, or while they come."""
        chance, asked = self._chance, self._some()
        raw = b"".join(one.raw for one in asked)
        moment = chance.choice(("sending", "waiting", "reading"))
        cut = len(raw) - (chance.randrange(len(asked[-1].raw)) if moment == "sending" else 0)
        await line.send(chance, raw[:cut])
        if moment != "reading":
            await asyncio.sleep(chance.choice((0, 0.001, 0.005, 0.02)))
        else:
            whole = chance.randrange(len(asked))
            for one in asked[:whole]:
                await self._read(line, one)
            async with asyncio.timeout(ANSWER_S):
                await line.read_head()
                await line.read_some(chance.randint(1, asked[whole].answer_bytes))
            asked = asked[whole:]
        self._found.aborted += len(asked)


async def visits(
    port: int, plan: Plan, seed: int, *, clients: int, until: Callable[[Found], bool]
) -> Found:
    """Lets so many clients at a time visit until enough is found; returns what they saw."""
    found = Found()

    async def come(number: int) -> None:
        visitor = Visitor(port, random.Random(f"{seed} {number}"), plan, found)
        while not until(found) and not found.faults:
            await visitor.visit()

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*(come(number) for number in range(clients)))
    return found
