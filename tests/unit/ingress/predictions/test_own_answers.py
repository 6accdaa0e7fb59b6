"""Every client gets its own answer, whichever clients left, and however late replies come."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time

import pytest

from batching.protocol import Batch, Reply
from batching.store.clients import connect
from batching.store.keys import VersionKeys
from batching.store.worker_queue import WorkerQueue
from tests.support import eventually, items_of
from tests.timing import assert_within
from tests.unit.ingress.simulated_node import DEAD_AFTER_S
from tests.unit.ingress.sockets import connect_to, post, read_to_end, statuses

pytestmark = pytest.mark.slow  # whole servers on real sockets

LARGE_BYTES = 96_000
RESET = struct.pack("ii", 1, 0)


class Worker:
    """The only worker of the model; it claims and replies when the test says so."""

    def __init__(self, redis_url, key):
        self.client = connect(redis_url, socket_timeout_s=10)
        self.keys = VersionKeys.of(key)
        self._queue = WorkerQueue(self.client, key, "9000", int(DEAD_AFTER_S * 1000))

    def claim(self, count):
        """Returns so many requests, once they have come."""
        claimed = []

        def is_enough():
            claimed.extend(self.claim_some(count - len(claimed)))
            return len(claimed) == count

        eventually(is_enough)
        return claimed

    def claim_some(self, limit):
        batch = self._queue.claim(limit, 0.0)
        return batch.items if isinstance(batch, Batch) else []

    def reply(self, items, size_bytes=0):
        """Answers each request with what it was asked, filled up to `size_bytes`."""
        replies = [Reply(200, body_of(item).ljust(size_bytes, b".")) for item in items]
        self._queue.reply(items_of(Batch(items)), replies)

    def repeat(self, item):
        """Puts the reply into the list of its ingress once more, as if it had been sent twice."""
        content = Reply(200, b"again: " + body_of(item)).encode()
        entry = item.owned.request_id.encode() + content
        self.client.rpush(self.keys.done_prefix + item.owned.ingress_id, entry)


def body_of(item):
    return bytes(item.request.parts[0].content)


@pytest.fixture
def worker(echo, node, redis_url):
    def is_known():
        # Only what was asked for while the catalog follows changes is known without Redis.
        answer = echo.predict("/predictions/echo", data=b"known by now")
        return answer.status_code == 200 and echo.services.catalog.known("echo", None)

    eventually(is_known)
    node.pause()
    worker = Worker(redis_url, echo.registry.resolve("echo", None).key)
    yield worker
    worker.client.close()


@pytest.fixture
def dial(echo):
    """Opens so many connections; those that are still open are closed in the end."""
    with contextlib.ExitStack() as held:
        yield lambda count: [
            held.enter_context(connect_to(echo.inference_url)) for _ in range(count)
        ]


@contextlib.contextmanager
def halted(loop):
    """The ingress sees all at once what happens in the with block."""
    is_over = threading.Event()
    loop.call_soon_threadsafe(is_over.wait)
    try:
        yield
    finally:
        is_over.set()


def ask(connection, body, *lines):
    length = b"Content-Length: %d" % len(body)
    connection.sendall(post("/predictions/echo", length, *lines, body=body))


def leave(connection, *, with_reset):
    if with_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


# How clients say that they wait no more. The last one still hears the answer.
LEAVES = {
    "reset": lambda connection: leave(connection, with_reset=True),
    "farewell": lambda connection: leave(connection, with_reset=False),
    "half": lambda connection: connection.shutdown(socket.SHUT_WR),
}


def answers(connection):
    """Returns the bodies of all answers, the last of which ends the connection."""
    received = read_to_end(connection)
    parts = received.split(b"HTTP/1.1 ")[1:]
    assert statuses(received) == [200] * len(parts)
    return [part.partition(b"\r\n\r\n")[2] for part in parts]


@pytest.mark.parametrize("size_bytes", [0, LARGE_BYTES])
@pytest.mark.parametrize("with_reset", [False, True])
def test_reply_to_a_client_that_left_reaches_no_other_one(
    echo, worker, dial, size_bytes, with_reset
):
    for turn in range(5):
        # Given requests that are run
        leavers = dial(4)
        for connection in leavers:
            ask(connection, b"left %d" % turn)
        running = worker.claim(4)
        # When their clients leave and others come in the moment of the reply, which comes again
        with halted(echo.services.loop):
            for connection in leavers:
                leave(connection, with_reset=with_reset)
            comers = dial(4)
            for number, connection in enumerate(comers):
                ask(connection, b"stays %d" % number, b"Connection: close")
            worker.reply(running, size_bytes)
        claimed = worker.claim(4)
        for item in running:
            worker.repeat(item)
        worker.reply(claimed, size_bytes)
        # Then
        for number, connection in enumerate(comers):
            assert answers(connection) == [(b"stays %d" % number).ljust(size_bytes, b".")]


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_reply_that_comes_again_answers_no_later_request(worker, dial, is_pipelined):
    [connection] = dial(1)
    # Given: an answered request, and the next one on its connection
    ask(connection, b"first")
    if is_pipelined:
        ask(connection, b"second", b"Connection: close")
    first = worker.claim(1)
    worker.reply(first)
    if not is_pipelined:
        connection.recv(1, socket.MSG_PEEK)
        ask(connection, b"second", b"Connection: close")
    second = worker.claim(1)
    # When
    worker.repeat(first[0])
    worker.reply(second)
    # Then
    assert answers(connection) == [b"first", b"second"]


def test_bodies_of_clients_that_left_are_no_other_clients_bodies(echo, worker, dial, frozen):
    # Given: Redis takes nothing, so that bodies wait where they are
    bodies = [os.urandom(8).hex().encode() * (LARGE_BYTES // 16) for _ in range(20)]
    lines = dial(20)
    waiting = lambda: echo.services.broker.waiting  # noqa: E731
    with frozen():
        for connection, body in zip(lines[:10], bodies[:10], strict=True):
            ask(connection, body, b"Connection: close")
        eventually(lambda: waiting() == 10)
        # When half of them leave, and others send theirs
        for connection in lines[:5]:
            leave(connection, with_reset=True)
        for connection, body in zip(lines[10:], bodies[10:], strict=True):
            ask(connection, body, b"Connection: close")
    # Then each body that is run is one of them, whole, and once
    claimed = []

    def are_answered():
        items = worker.claim_some(8)
        claimed.extend(map(body_of, items))
        worker.reply(items)
        return waiting() == 0

    eventually(are_answered)
    assert len(set(claimed)) == len(claimed)
    assert set(claimed) <= set(bodies)
    assert [answers(connection) for connection in lines[5:]] == [[body] for body in bodies[5:]]


def test_requests_that_wait_on_their_connections_are_kept_apart(echo, worker, dial):
    # Given: the next request of each connection is read while the one before it is run
    lines = dial(4)
    for connection in lines:
        ask(connection, b"first")
    running = worker.claim(4)
    for number, connection in enumerate(lines):
        ask(connection, b"second %d" % number, b"Connection: close")
    assert echo.predict("/livez", "GET").status_code == 200
    # When
    worker.reply(running)
    worker.reply(worker.claim(4))
    # Then
    for number, connection in enumerate(lines):
        assert answers(connection) == [b"first", b"second %d" % number]


async def _turn():
    await asyncio.sleep(0)


def test_requests_that_gather_while_redis_stands_still_are_run_once(echo, worker, dial, frozen):
    # Given
    lines = dial(30)
    with frozen():
        # When they come in many turns of the loop
        for number, connection in enumerate(lines):
            ask(connection, b"r%d" % number, b"Connection: close")
            echo.services.on_loop(_turn())
        eventually(lambda: echo.services.broker.waiting == 30)
    items = worker.claim(30)
    worker.reply(items)
    # Then
    assert sorted(map(body_of, items)) == sorted(b"r%d" % number for number in range(30))
    assert [answers(connection) for connection in lines] == [[b"r%d" % n] for n in range(30)]


@pytest.mark.parametrize("how", LEAVES)
def test_request_of_a_client_that_left_is_soon_in_no_queue(echo, worker, dial, how):
    # Given requests that wait, in the queue and in a lease
    lines = dial(8)
    for connection in lines:
        ask(connection, b"x")
    queued = lambda: worker.client.llen(worker.keys.queue)  # noqa: E731
    eventually(lambda: queued() == 8)
    running = worker.claim(4)
    # When
    left_s = time.monotonic()
    for connection in lines:
        LEAVES[how](connection)
    eventually(lambda: worker.client.hlen(worker.keys.open) == 0)
    took_s = time.monotonic() - left_s
    # Then
    assert queued() == 0
    assert_within(took_s, 0.3)
    eventually(lambda: echo.services.broker.waiting == 0)
    worker.reply(running)
    if how == "half":
        assert {status for one in lines for status in statuses(read_to_end(one))} == {499}


def test_client_that_says_no_more_gets_a_reply_that_is_on_its_way(echo, worker, dial):
    # Given
    [connection] = dial(1)
    ask(connection, b"x")
    items = worker.claim(1)
    # When
    with halted(echo.services.loop):
        connection.shutdown(socket.SHUT_WR)
        worker.reply(items)
    # Then
    assert answers(connection) == [b"x"]


def test_deadline_is_kept_while_redis_stands_still(worker, dial, frozen):
    # Given: a request that waits in Redis, and others that do not get there any more
    line = b"X-Request-Timeout-Ms: 400"
    connections = dial(9)
    sent_s = [time.monotonic()]
    ask(connections[0], b"x", line)
    worker.claim(1)
    with frozen():
        for connection in connections[1:]:
            sent_s.append(time.monotonic())
            ask(connection, bytes(len(sent_s) * 8000), line)
        # When
        received = []
        for connection in connections:
            answer = read_to_end(connection)
            received.append((statuses(answer), time.monotonic()))
    # Then
    assert [found for found, _ in received] == [[504]] * 9
    for start_s, (_, end_s) in zip(sent_s, received, strict=True):
        assert end_s - start_s > 0.3
        assert_within(end_s - start_s, 0.5)
