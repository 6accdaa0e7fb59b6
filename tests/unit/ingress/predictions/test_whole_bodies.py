"""Bodies of any size, framed and cut in any way, over each kind of connection."""

import asyncio
import contextlib
import itertools
import os
import random
import re
import ssl

import pytest

from batching.protocol import INLINE_LIMIT_BYTES
from ingress.http1.listener import Address
from tests.ports import free_ports
from tests.tls import needs_openssl
from tests.unit.ingress.sockets import listening, post

pytestmark = pytest.mark.slow  # whole servers on real sockets

READ_BYTES = 16 * 1024
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
def address(request, echo, tmp_path_factory):
    """Where an inference port listens, over each kind of connection."""
    tls = request.getfixturevalue("tls") if request.param == "tls" else None
    if request.param == "unix":
        # The name of a socket is short.
        address = Address("", 0, tmp_path_factory.mktemp("unix") / "x.sock")
    else:
        address = Address("127.0.0.1", free_ports(1), is_tls=tls is not None)
    with listening(echo, address, tls and tls.context):
        yield address


@pytest.fixture
def client_tls(address, request):
    """Lets a client trust the server; None where it has nothing to trust."""
    if not address.is_tls:
        return None
    return ssl.create_default_context(cafile=str(request.getfixturevalue("tls").certificate_file))


@contextlib.asynccontextmanager
async def connected(address, client_tls):
    """A connection to the inference port; cut pieces of a request arrive as they are."""
    if address.socket_path:
        reader, writer = await asyncio.open_unix_connection(address.socket_path)
    else:
        name = None if client_tls is None else "localhost"
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=client_tls, server_hostname=name
        )
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def next_answer(reader):
    """Returns the body of the next answer, which must be good."""
    head = b"HTTP/1.1 100 "
    while head.startswith(b"HTTP/1.1 100 "):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
    return await reader.readexactly(int(length[1]))


@pytest.mark.parametrize("framed", [with_length, expecting, in_chunks])
async def test_body_arrives_whole_wherever_it_is_cut(address, client_tls, framed):
    chance = random.Random(1)
    async with connected(address, client_tls) as (reader, writer):
        for size in SIZES:
            body = os.urandom(size)
            data = framed(body)
            head = data.index(b"\r\n\r\n") + 4
            for cuts in ([], [head], sorted(chance.sample(range(len(data)), 3))):
                # When
                for start, end in itertools.pairwise([0, *cuts, len(data)]):
                    writer.write(data[start:end])
                    await writer.drain()
                # Then
                assert await next_answer(reader) == b"body:|" + body


async def test_bodies_arrive_whole_when_they_come_behind_each_other(address, client_tls):
    # Given requests that begin and end in the middle of what is read at a time
    framings = itertools.cycle([with_length, in_chunks])
    bodies = [os.urandom(size) for size in SIZES * 2]
    requests = [framed(body) for framed, body in zip(framings, bodies, strict=False)]
    async with connected(address, client_tls) as (reader, writer):
        # When
        writer.write(b"".join(requests))
        # Then
        for body in bodies:
            assert await next_answer(reader) == b"body:|" + body
