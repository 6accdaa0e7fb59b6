"""Large strings from Redis, and what may be wrong with an answer."""

import socket
import threading

import pytest
import redis

from batching.store.clients import connect
from batching.store.held_connection import HeldConnection
from batching.store.string_reader import AHEAD_BYTES, StringReader

NAMES = ["{ferry}:a", "{ferry}:b", "{ferry}:c"]


@pytest.fixture
def line(real_backend):
    """A connection to the real server."""
    client = connect(real_backend.url)
    yield HeldConnection(client)
    client.connection_pool.disconnect()


@pytest.mark.parametrize("size", [0, 1, AHEAD_BYTES - 5, AHEAD_BYTES, 1000, 3_000_000])
def test_strings_of_any_size_come_in_buffers_of_their_own(size, line, real_backend):
    # Given
    first, last = bytes(range(256)) * (size // 256 + 1), b"\r\n$5\r\n" * (size // 7 + 1)
    real_backend.client.set(NAMES[0], first[:size], ex=60)
    real_backend.client.set(NAMES[2], last[:size], ex=60)

    # When
    found = line.fetch(NAMES)

    # Then
    assert found == [first[:size], None, last[:size]]
    assert all(type(one) is bytearray for one in (found[0], found[2]))
    # And nothing is left on the connection
    assert line.call(("ECHO", "x")) == b"x"


def test_refusal_is_raised_and_the_connection_goes_on(line, real_backend):
    # Given
    real_backend.client.execute_command("ACL", "SETUSER", "default", "-mget")

    # When / Then
    try:
        with pytest.raises(redis.exceptions.NoPermissionError):
            line.fetch(NAMES)
    finally:
        real_backend.client.execute_command("ACL", "SETUSER", "default", "+mget")
    assert line.fetch(NAMES) == [None] * 3


def answering(pieces):
    """A socket on which these bytes arrive, one after the other, and then the end."""
    ours, theirs = socket.socketpair()

    def send():
        with theirs:
            for piece in pieces:
                theirs.sendall(piece)

    threading.Thread(target=send).start()
    return ours


def read(*pieces):
    with answering(pieces) as sock:
        sock.settimeout(5.0)
        return StringReader(sock, b"").read()


def test_strings_may_come_byte_by_byte():
    # Given
    answer = b"*3\r\n$3\r\nabc\r\n$-1\r\n$40\r\n" + b"x" * 40 + b"\r\n"

    # When / Then
    assert read(*[answer[n : n + 1] for n in range(len(answer))]) == [b"abc", None, b"x" * 40]


@pytest.mark.parametrize("end", [0, 1, 5, 9, 20])
def test_answer_that_ends_early_is_an_error(end):
    with pytest.raises(redis.ConnectionError):
        read(b"*1\r\n$20\r\nxxxxxxxxxxxxxxxxxxxx\r\n"[:end])


@pytest.mark.parametrize(
    "answer", [b"*1\r\n:1\r\n", b"*x\r\n", b"*1\r\n$1x\r\nab\r\n", b"$1\r\na\r\n"]
)
def test_other_answer_is_an_error(answer):
    with pytest.raises(redis.InvalidResponse):
        read(answer)


def test_silent_server_is_given_up(real_backend):
    # Given
    client = connect(real_backend.url, socket_timeout_s=0.1)
    line = HeldConnection(client)
    assert line.fetch(NAMES) == [None] * 3
    real_backend.client.client_pause(400, all=True)

    # When / Then
    with pytest.raises(redis.TimeoutError):
        line.fetch(NAMES)
    real_backend.client.client_unpause()
    assert line.fetch(NAMES) == [None] * 3
    client.connection_pool.disconnect()
