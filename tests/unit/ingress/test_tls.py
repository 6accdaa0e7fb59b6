"""Addresses with https://: TLS with the operator's own certificate."""

import asyncio
import shutil
import socket
import ssl
import subprocess

import pytest
import uvloop

from ingress.listeners import Address, Listener, Tls
from tests.ports import free_ports

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make certificates with")

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    words = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run([*words, *names, *files], cwd=folder, check=True, capture_output=True)
    return Tls(folder / "certificate.pem", folder / "key.pem")


async def hello(exchange):
    exchange.respond(200, [("x-scheme", exchange.scheme)], b"hello")


def answer_of(tls, wrap):
    """What a listener with TLS says over a connection that went through `wrap`."""

    def exchange(port):
        with wrap(socket.create_connection(("127.0.0.1", port), timeout=10)) as connection:
            connection.sendall(REQUEST)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    async def serve():
        listener = Listener(Address("127.0.0.1", free_ports(1), is_tls=True), hello, tls=tls)
        await listener.start()
        try:
            return await asyncio.to_thread(exchange, listener.address.port)
        finally:
            listener.stop()
            await listener.wait_closed()

    return asyncio.run(serve())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_listener_speaks_tls_with_the_certificate_it_was_given(tls, version):
    # Given a client that trusts this certificate only
    context = ssl.create_default_context(cafile=str(tls.certificate_file))
    context.maximum_version = version
    # When
    answer = answer_of(tls, lambda plain: context.wrap_socket(plain, server_hostname="localhost"))
    # Then
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-scheme: https" in answer.lower()
    assert answer.endswith(b"hello")


def test_listener_with_tls_answers_nothing_to_a_client_without(tls):
    def plainly(connection):
        return connection

    try:
        answer = answer_of(tls, plainly)
    except ConnectionError:
        answer = b""
    assert b"hello" not in answer


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_listener_with_tls_waits_for_no_farewell_of_idle_clients(tls, version):
    context = ssl.create_default_context(cafile=str(tls.certificate_file))
    context.maximum_version = version

    def ask(port):
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection = context.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(REQUEST.replace(b"close", b"keep-alive"))
        assert connection.recv(1000).endswith(b"hello")
        return connection

    async def serve():
        listener = Listener(Address("127.0.0.1", free_ports(1), is_tls=True), hello, tls=tls)
        await listener.start()
        # Given: one that reads nothing until it asks again
        with await asyncio.to_thread(ask, listener.address.port) as connection:
            # When
            listener.stop()
            await asyncio.wait_for(listener.wait_closed(), 5)
            # Then: it was told
            assert await asyncio.to_thread(connection.recv, 1000) == b""

    uvloop.run(serve())
