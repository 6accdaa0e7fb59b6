"""F34 and F35: clients that send or read too slowly, or not at all."""

import contextlib
import itertools
import os
import socket
import ssl
import threading
import time
from dataclasses import replace

import psutil
import pytest
import requests

from batching.errors import RequestTimeout
from batching.settings.settings import Settings
from ingress.http1.listener import Address
from ingress.torchserve.answers import error_answer
from tests.ports import free_ports
from tests.support import eventually
from tests.timing import assert_within
from tests.tls import needs_openssl
from tests.unit.ingress.sockets import (
    connect_to,
    exchange,
    listening,
    listening_on,
    loop_in_thread,
    post,
    read_to_end,
    served,
    statuses,
)

pytestmark = pytest.mark.slow  # whole servers on real sockets


ANSWER = b"x" * 4_000_000
FORM = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7"
IMPATIENT = Settings(idle_timeout_s=0.5, unread_timeout_s=1.0)
BODY_TIMEOUT_S = 0.2


@pytest.fixture
def impatient():
    """Yields the address of a listener that waits for nothing for long.

    It answers a POST when it has the body, `/large` with much and everything else with `ok`.
    """

    async def answer(exchange):
        try:
            if exchange.method == "POST":
                await exchange.read_body(100_000, BODY_TIMEOUT_S)
        except RequestTimeout as error:
            exchange.respond(*error_answer(error, "id"))
        else:
            exchange.respond(200, [], ANSWER if exchange.path == "/large" else b"ok")

    with loop_in_thread() as (_, call), listening_on(call, answer, settings=IMPATIENT) as url:
        yield url


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_f35_silent_connections_are_closed_and_others_served(impatient, sent):
    with contextlib.ExitStack() as stack:
        # Given
        connections = [stack.enter_context(connect_to(impatient)) for _ in range(50)]
        for connection in connections:
            connection.sendall(sent)
        started_s = time.monotonic()
        # When / Then
        assert requests.get(impatient, timeout=5).text == "ok"
        answered_s = time.monotonic() - started_s
        assert [read_to_end(connection) for connection in connections] == [b""] * 50
        closed_s = time.monotonic() - started_s
    assert_within(answered_s, 0.4)
    assert closed_s > 0.3
    assert_within(closed_s, 3)


def test_f35_header_that_drips_is_closed_in_time(impatient):
    # Given: a byte now and then does not buy more time
    with connect_to(impatient) as connection:
        connection.settimeout(0.1)
        started_s = time.monotonic()
        is_open = True
        # When
        for byte in itertools.cycle(b"GET / HTTP/1.1"):
            try:
                connection.sendall(bytes([byte]))
                is_open = connection.recv(1) != b""
            except TimeoutError:
                pass
            except ConnectionError:
                is_open = False
            if not is_open or time.monotonic() - started_s > 5:
                break
    # Then
    assert not is_open
    assert_within(time.monotonic() - started_s, 3)


@pytest.mark.parametrize(
    "line", [b"Content-Length: 10", b"Content-Length: 90000", b"Transfer-Encoding: chunked"]
)
def test_f35_body_that_does_not_come_is_answered_in_time(impatient, line):
    assert statuses(exchange(impatient, post("/", line))) == [408]


def open_at(address):
    """Returns how many connections the listener has."""
    port = int(address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp4")
    return sum(one.laddr.port == port and one.status == "ESTABLISHED" for one in found)


def test_f34_answer_that_is_not_read_ends_its_connection(impatient):
    # Given
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(connect_to(impatient)) for _ in range(20)]
        started_s = time.monotonic()
        # When: one of them takes a byte now and then, the others nothing
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda: open_at(impatient) == 20)

        def are_closed():
            connections[0].recv(1)
            return open_at(impatient) == 0

        # Then
        eventually(are_closed, 10)
        assert time.monotonic() - started_s > 0.9


@pytest.mark.parametrize("count", [1, 2])
def test_f34_answer_that_is_read_slowly_arrives_whole(impatient, count):
    # Given
    with connect_to(impatient) as connection:
        ask = b"GET /large HTTP/1.1\r\nHost: x\r\n"
        connection.sendall((ask + b"\r\n") * (count - 1) + ask + b"Connection: close\r\n\r\n")
        received, started_s = b"", time.monotonic()
        # When: it takes longer than an answer may lie unread
        while piece := connection.recv(200_000):
            received += piece
            threading.Event().wait(0.1)
    # Then
    assert received.endswith(ANSWER)
    assert statuses(received) == [200] * count
    assert time.monotonic() - started_s > 1.5


@needs_openssl
@pytest.mark.parametrize("is_tls", [False, True])
def test_f34_stream_that_is_read_slowly_is_not_taken_for_one_that_is_not_read(is_tls, tls):
    # Given
    piece, count = b"x" * 16_000, 400
    context = ssl.create_default_context(cafile=str(tls.certificate_file))

    async def pieces():
        for _ in range(count):
            yield piece

    async def answer(exchange):
        await exchange.respond_in_pieces(200, [], pieces())

    def read(port):
        # When: a megabyte, a third of what the system would take by itself, takes twice as long
        end = socket.create_connection(("127.0.0.1", port), timeout=10)
        if is_tls:
            end = context.wrap_socket(end, server_hostname="localhost")
        with end, end.makefile("rb") as answer:
            end.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received, read_s = [], time.monotonic()
            while data := answer.read(40_000):
                received.append(data)
                threading.Event().wait(0.015)
                # A machine that stands still for longer does not read.
                assert_within(time.monotonic() - read_s, IMPATIENT.unread_timeout_s)
                read_s = time.monotonic()
        return b"".join(received)

    # Then
    received = served(answer, read, tls=tls if is_tls else None, settings=IMPATIENT)
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert received.count(piece) == count


@pytest.mark.parametrize(
    ("request_bytes", "status", "setting"),
    [
        (post("/predictions/echo", b"Content-Length: 9"), 408, "body_timeout"),
        (post("/predictions/echo", b"Transfer-Encoding: chunked"), 408, "body_timeout"),
        (post("/nothing", b"Content-Length: 9"), 408, "body_timeout"),
        (post("/", b"X: " + b"y" * 3000), 431, "max_header_size"),
        (post("/predictions/echo", FORM, body=b"a=1&b=2"), 400, "max_form_parts"),
    ],
)
def test_limits_are_settings_that_the_answer_names(echo, request_bytes, status, setting):
    # Given
    address = Address("127.0.0.1", free_ports(1))
    settings = replace(
        echo.services.settings,
        body_timeout_s=0.2,
        idle_timeout_s=0.5,
        max_header_size_bytes=2048,
        max_form_parts=1,
    )
    # When
    with listening(echo, address, settings=settings):
        answer = exchange(f"http://127.0.0.1:{address.port}", request_bytes)
        with connect_to(f"http://127.0.0.1:{address.port}") as idle:
            rest = read_to_end(idle)
    # Then
    assert statuses(answer) == [status]
    assert f"raise {setting}".encode() in answer
    assert rest == b""


def test_f34_clients_that_do_not_read_slow_no_other_client_down(ingress, node):
    # Given: twenty clients that ask for an answer of 99 kB and read nothing
    ingress.register("echo")
    body = os.urandom(99_000)
    request = post("/predictions/echo", b"Content-Length: %d" % len(body), body=body)
    idle = [connect_to(ingress.inference_url) for _ in range(20)]
    for connection in idle:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request)
    # When
    started_s = time.monotonic()
    answers = [ingress.predict("/predictions/echo", data=b"x").status_code for _ in range(20)]
    # Then
    assert answers == [200] * 20
    assert_within(time.monotonic() - started_s, 5)
    for connection in idle:
        connection.close()
