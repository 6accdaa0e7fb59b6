"""Addresses with https://: TLS with the operator's own certificate."""

import asyncio
import logging
import socket
import ssl
import subprocess

import pytest
import uvloop

from batching.settings.settings import SettingsError
from ingress.access.certificate import Certificate
from ingress.http1.listener import Address
from tests.ports import free_ports
from tests.support import eventually_async
from tests.tls import OPENSSL, make_certificate, needs_openssl, shown_certificate, write_certificate
from tests.unit.ingress.sockets import listener, served

pytestmark = needs_openssl

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def hello(exchange):
    exchange.respond(200, [("x-scheme", exchange.connection.scheme)], b"hello")


def answer_of(tls, wrap):
    """Asks a listener with TLS over a connection that `wrap` makes; returns its answer."""

    def exchange(port):
        with wrap(socket.create_connection(("127.0.0.1", port), timeout=10)) as connection:
            connection.sendall(REQUEST)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    return served(hello, exchange, tls=tls)


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
        address = Address("127.0.0.1", free_ports(1), is_tls=True)
        async with listener(hello, address, tls=tls.context) as started:
            # Given: one that reads nothing until it asks again
            with await asyncio.to_thread(ask, address.port) as connection:
                # When
                started.stop()
                await asyncio.wait_for(started.wait_closed(), 5)
                # Then: it was told
                assert await asyncio.to_thread(connection.recv, 1000) == b""

    uvloop.run(serve())


# --- files


def openssl(folder, *words):
    subprocess.run([OPENSSL, *words], cwd=folder, check=True, capture_output=True)


def passphrase(folder):
    words = ["pkey", "-aes256", "-passout", "pass:secret", "-in", "certificate.key"]
    openssl(folder, *words, "-out", "new.pem")
    (folder / "new.pem").replace(folder / "certificate.key")


def other_key(folder):
    (folder / "other").mkdir()
    write_certificate(folder / "other")
    (folder / "other" / "certificate.key").replace(folder / "certificate.key")


def key_of_another_kind(folder):
    openssl(folder, "genrsa", "-out", "certificate.key", "2048")


def short_key(folder):
    words = ["req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", "/CN=short"]
    openssl(folder, *words, "-keyout", "certificate.key", "-out", "certificate.pem")


def weak_signature(folder):
    make_certificate(folder, "authority", "DNS:authority")
    words = ["x509", "-in", "certificate.pem", "-signkey", "certificate.key", "-x509toreq"]
    openssl(folder, *words, "-out", "asked")
    words = ["x509", "-req", "-in", "asked", "-CA", "authority.pem", "-sha1", "-days", "1"]
    files = ["-CAkey", "authority.key", "-CAcreateserial", "-out", "certificate.pem"]
    openssl(folder, *words, *files)


def garbage(folder):
    (folder / "certificate.pem").write_text("garbage")


def half_a_key(folder):
    text = (folder / "certificate.key").read_text()
    (folder / "certificate.key").write_text(text[: len(text) // 2])


def exchanged(folder):
    (folder / "certificate.key").rename(folder / "aside")
    (folder / "certificate.pem").rename(folder / "certificate.key")
    (folder / "aside").rename(folder / "certificate.pem")


def nothing(folder):
    (folder / "certificate.key").unlink()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (passphrase, "certificate.key: the key has a passphrase: `openssl pkey"),
        (other_key, "key: the private key belongs to another .*KEY_VALUES_MISMATCH"),
        (key_of_another_kind, "key: the private key belongs to another .*[A-Z]{8}"),
        (short_key, "key: the certificate's key is too short: RSA needs 2048 .*EE_KEY_TOO_SMALL"),
        (weak_signature, "key: a certificate is signed with MD5 or SHA-1: .*CA_MD_TOO_WEAK"),
        (garbage, "certificate.pem: no certificate in PEM .*NO_CERTIFICATE_OR_CRL_FOUND.*x509"),
        (half_a_key, "certificate.key: no private key in PEM .*PEM lib.*openssl pkey"),
        (exchanged, "certificate.pem: no certificate in PEM"),
        (nothing, "certificate.key: No such file"),
    ],
)
def test_files_that_are_no_pair_are_refused_with_the_reason(tmp_path, spoil, reason):
    pair = write_certificate(tmp_path)
    spoil(tmp_path)
    with pytest.raises(SettingsError, match=reason):
        pair.open()


def test_renewed_certificate_is_shown_to_later_connections(tmp_path, caplog):
    # Given
    caplog.set_level(logging.INFO)
    written = write_certificate(tmp_path)
    pair = Certificate(written.certificate_file, written.private_key_file, look_s=0.01)
    pair.open()
    old = pair.certificate_file.read_text()

    async def renew(port):
        async def shown():
            return await asyncio.to_thread(shown_certificate, port)

        assert await shown() == old
        # When: the files are replaced one after the other, the second one late
        write_certificate(tmp_path)
        key = pair.private_key_file.read_text()
        pair.private_key_file.write_text("half a file")
        await eventually_async(lambda: "certificate not renewed" in caplog.text)
        # Then
        assert await shown() == old
        # When
        pair.private_key_file.write_text(key)
        await eventually_async(lambda: "renewed certificate_file=" in caplog.text)
        # Then
        assert await shown() == pair.certificate_file.read_text() != old

    async def serve():
        address = Address("127.0.0.1", free_ports(1), is_tls=True)
        async with listener(hello, address, tls=pair.context):
            following = asyncio.create_task(pair.follow())
            try:
                await renew(address.port)
            finally:
                following.cancel()
                await asyncio.wait({following})
            assert following.cancelled()

    uvloop.run(serve())
    assert caplog.text.count("certificate not renewed") == 1
