"""The proxy of `ferry shadow serve`: clients get the old server's answers."""

import asyncio
import contextlib
import gzip

import httpx
import pytest

from ferry_moving.comparison import Tolerance, Verdict
from ferry_moving.proxy import Proxy, TargetServer, serve
from ferry_moving.report import Result
from packages.moving.tests.upstream import BREAK, Upstream
from tests.ports import free_ports
from tests.support import eventually_async

LARGE = bytes(range(256)) * 70_000  # 18 MB: more than is sent whole


class Shadow:
    """A proxy that serves, a client, and what comes of comparing."""

    def __init__(self, old, new, **mirroring):
        self._address = ("127.0.0.1", free_ports(1))
        self.result = Result(Tolerance())
        targets = TargetServer(old, "", 10.0), TargetServer(new, "", 10.0)
        self._proxy = Proxy(*targets, self.result, **{"share": 1.0, "most_open": 100} | mirroring)

    @contextlib.asynccontextmanager
    async def running(self):
        stop, is_listening = asyncio.Event(), asyncio.Event()

        async def show():
            is_listening.set()

        task = asyncio.create_task(serve(self._proxy, self._address, 2, stop, show))
        url = "http://{}:{}".format(*self._address)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=20) as self.client:
                await asyncio.wait_for(is_listening.wait(), 10)
                yield self
        finally:
            stop.set()
            await task

    async def compared(self, count=1):
        await eventually_async(lambda: self.result.verdicts.total() >= count, 20)
        return self.result.verdicts


@contextlib.asynccontextmanager
async def shadowing(old, new, **mirroring):
    with old.running(), new.running():
        async with Shadow(old.url, new.url, **mirroring).running() as one:
            yield one


async def test_client_gets_the_old_answer_as_it_is():
    # Given
    headers = {
        "content-type": "text/x",
        "x-own": "ü".encode().decode("latin-1"),
        "set-cookie": "a=b",
    }
    old = Upstream(b"old", status=203, headers=headers)
    new = Upstream(b"new")
    async with shadowing(old, new) as shadow:
        # When
        answer = await shadow.client.post(
            "/predictions/a%20b/x:y?z=%2F&w", content=b"body", headers={"x-a": "b"}
        )
        # Then
        assert (answer.status_code, answer.content) == (203, b"old")
        assert answer.headers["content-type"] == "text/x"
        assert answer.headers["set-cookie"] == "a=b"
        assert (await shadow.compared())[Verdict.STATUS] == 1
    [(method, path, sent, body)] = old.asked
    assert new.asked[0][:2] + new.asked[0][3:] == (method, path, body)
    assert (method, path, body) == ("POST", "/predictions/a%20b/x:y?z=%2F&w", b"body")
    assert (sent["x-a"], sent["host"]) == ("b", old.url[7:])


async def test_headers_are_not_added_nor_bodies_unpacked_but_compared_as_they_are_meant():
    packed = gzip.compress(b'{"label": "cat", "score": 0.5}')
    old = Upstream(packed, headers={"content-encoding": "gzip"})
    new = Upstream(headers={"x-own": "a"})
    async with shadowing(old, new) as shadow:
        sent = {"content-encoding": "gzip", "accept-encoding": "gzip"}
        answer = await shadow.client.post("/p", content=packed, headers=sent)
        assert answer.json()["label"] == "cat"
        assert "content-type" not in answer.headers
        assert old.asked[0][3] == packed
        assert await shadow.compared() == {Verdict.SAME: 1}


async def test_clients_do_not_wait_for_a_slow_new_server_and_what_is_too_much_is_counted():
    # Given a new server that answers nothing
    new = Upstream()
    new.go.clear()
    async with shadowing(Upstream(), new, most_open=3) as shadow:
        # When
        answers = await asyncio.gather(*(shadow.client.get("/p") for _ in range(10)))
        # Then
        assert [one.status_code for one in answers] == 10 * [200]
        assert shadow.result.uncompared == {"more than --queue at a time": 7}
        # and when it goes on, so does the comparing
        new.go.set()
        assert await shadow.compared(3) == {Verdict.SAME: 3}
        await shadow.client.get("/p")
        assert await shadow.compared(4) == {Verdict.SAME: 4}


async def test_new_server_that_is_away_is_a_miss():
    port = free_ports(1)
    with Upstream().running() as old:
        async with Shadow(old.url, f"http://127.0.0.1:{port}").running() as shadow:
            assert (await shadow.client.get("/p")).status_code == 200
            assert await shadow.compared() == {Verdict.MISSED: 1}


async def test_old_server_that_is_away_is_a_bad_gateway_with_the_reason():
    port = free_ports(1)
    with Upstream().running() as new:
        async with Shadow(f"http://127.0.0.1:{port}", new.url).running() as shadow:
            answer = await shadow.client.post("/p", content=b"x")
    # Then
    assert answer.status_code == 502
    assert answer.text.startswith(f"ferry shadow: no answer from http://127.0.0.1:{port}: ")
    assert shadow.result.uncompared == {"no answer from the old server": 1}
    assert new.asked == []


async def test_pieces_reach_the_client_as_they_come():
    # Given
    old = Upstream()
    old.pieces = (b"first ", b"second ", b"third")
    old.go.clear()
    new = Upstream(b"first second third")
    async with shadowing(old, new) as shadow, shadow.client.stream("GET", "/p") as answer:
        # When only the head has been sent, and then the pieces
        assert answer.status_code == 200
        old.go.set()
        pieces = [piece async for piece in answer.aiter_raw()]
        # Then
        assert b"".join(pieces) == b"first second third"
        assert await shadow.compared() == {Verdict.SAME: 1}


async def test_answer_that_breaks_off_does_so_for_the_client():
    old = Upstream()
    old.pieces = (b"first", BREAK)
    async with shadowing(old, Upstream()) as shadow:
        with pytest.raises(httpx.RemoteProtocolError):
            await shadow.client.get("/p")
    assert shadow.result.uncompared == {"no answer from the old server": 1}


async def test_large_bodies_pass_in_both_directions():
    old = Upstream(LARGE, headers={"content-type": "application/octet-stream"})
    new = Upstream(LARGE + b"x", headers={"content-type": "application/octet-stream"})
    async with shadowing(old, new) as shadow:

        async def pieces():
            for start in range(0, len(LARGE), 1_000_000):
                yield LARGE[start : start + 1_000_000]

        # When with its length, and then in chunks
        first = await shadow.client.post("/p", content=LARGE)
        second = await shadow.client.post("/p", content=pieces())
        # Then
        assert first.content == second.content == LARGE
        assert [one[3] for one in old.asked] == [LARGE, LARGE]
        assert await shadow.compared(2) == {Verdict.BODY: 2}
        assert [one[3] for one in new.asked] == [LARGE, LARGE]


async def test_copies_take_no_more_memory_than_they_may(monkeypatch):
    monkeypatch.setattr("ferry_moving.proxy.MOST_BYTES", 100)
    old = Upstream()
    async with shadowing(old, Upstream()) as shadow:
        answer = await shadow.client.post("/p", content=bytes(101))
        assert answer.status_code == 200
        await shadow.client.post("/p", content=bytes(10))
        assert await shadow.compared() == {Verdict.SAME: 1}
    assert shadow.result.uncompared == {"too large": 1}


@pytest.mark.parametrize("pieces", [(), 100 * (bytes(100_000),)])
async def test_client_that_leaves_ends_its_request_at_the_old_server(pieces):
    # Given an answer that waits, or a stream whose head is there
    old = Upstream()
    old.pieces = pieces
    old.go.clear()

    async def ask():
        async with shadow.client.stream("GET", "/p"):
            await asyncio.Event().wait()

    async with shadowing(old, Upstream()) as shadow:
        asking = asyncio.create_task(ask())
        await asyncio.to_thread(old.has_come.wait, 10)
        # When
        asking.cancel()
        # Then
        await eventually_async(lambda: shadow.result.uncompared == {"the client left": 1})
        old.go.set()
        assert await asyncio.to_thread(old.has_left.wait, 10)


async def test_head_has_no_body_and_only_a_share_is_mirrored():
    async with shadowing(Upstream(), Upstream(), share=0.0) as shadow:
        answer = await shadow.client.head("/p")
        assert (answer.status_code, answer.content) == (200, b"")
        assert (shadow.result.verdicts.total(), shadow.result.uncompared) == (0, {})
