"""Bodies of any size, framed and cut in any way, over each kind of connection."""

import itertools
import os
import random
import socket
import ssl
import threading

import pytest

from batching.protocol import INLINE_LIMIT_BYTES
from ingress.listeners import Address
from tests.ports import free_ports
from tests.tls import needs_openssl
from tests.unit.ingress.sockets import listening, post

pytestmark = pytest.mark.slow  # whole servers on real sockets

READ_BYTES = 64 * 1024
# Around the sizes at which a body takes another way, with and without its head.
SIZES = [
    0,
    1,
    1000,
    *range(INLINE_LIMIT_BYTES - 60, INLINE_LIMIT_BYTES + 60, 30),
    *range(READ_BYTES - 300, READ_BYTES + 60, 60),
    99_000,
]


def with_length(body, *lines):
    return post("/predictions/echo", b"Content-Length: %d" % len(body), *lines, body=body)


def expecting(body):
    return with_length(body, b"Expect: 100-continue")


def in_chunks(body):
    pieces = [body[start : start + 20_000] for start in range(0, len(body), 20_000)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""]]
    return post("/predictions/echo", b"Transfer-Encoding: chunked", body=b"".join(chunks))


@pytest.fixture(params=["tcp", "unix", pytest.param("tls", marks=needs_openssl)])
def connection(request, echo, tmp_path_factory):
    """A connection to the inference port; cut pieces of a request arrive as they are."""
    tls = request.getfixturevalue("tls") if request.param == "tls" else None
    if request.param == "unix":
        # The name of a socket is short.
        address = Address("", 0, tmp_path_factory.mktemp("unix") / "x.sock")
        place, end = str(address.socket_path), socket.socket(socket.AF_UNIX)
    else:
        address = Address("127.0.0.1", free_ports(1), is_tls=tls is not None)
        place, end = (address.host, address.port), socket.socket()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        context = ssl.create_default_context(cafile=str(tls.certificate_file))
        end = context.wrap_socket(end, server_hostname="localhost")
    end.settimeout(20)
    with end, listening(echo, address, tls and tls.context):
        end.connect(place)
        yield end


def read_answer(file):
    """Returns the body of the next answer, which must be good."""
    status, length = b"HTTP/1.1 100 Continue\r\n", 0
    while status.startswith(b"HTTP/1.1 100"):
        status = file.readline()
        while (line := file.readline()) != b"\r\n":
            name, _, value = line.partition(b": ")
            length = int(value) if name == b"content-length" else length
    assert status == b"HTTP/1.1 200 OK\r\n"
    return file.read(length)


@pytest.mark.parametrize("framed", [with_length, expecting, in_chunks])
def test_body_arrives_whole_wherever_it_is_cut(connection, framed):
    chance = random.Random(1)
    with connection.makefile("rb") as file:
        for size in SIZES:
            body = os.urandom(size)
            data = framed(body)
            head = data.index(b"\r\n\r\n") + 4
            for cuts in ([], [head], sorted(chance.sample(range(len(data)), 3))):
                # When
                for start, end in itertools.pairwise([0, *cuts, len(data)]):
                    connection.sendall(data[start:end])
                # Then
                assert read_answer(file) == b"body:|" + body


def test_bodies_arrive_whole_when_they_come_behind_each_other(connection):
    # Given requests that begin and end in the middle of what is read at a time
    framings = itertools.cycle([with_length, in_chunks])
    bodies = [os.urandom(size) for size in SIZES * 2]
    data = b"".join(framed(body) for framed, body in zip(framings, bodies, strict=False))
    # When
    sending = threading.Thread(target=connection.sendall, args=(data,))
    sending.start()
    with connection.makefile("rb") as file:
        answers = [read_answer(file) for _ in bodies]
    sending.join(20)
    # Then
    assert answers == [b"body:|" + body for body in bodies]
