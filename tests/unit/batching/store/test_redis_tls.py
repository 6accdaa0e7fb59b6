"""rediss:// verifies the server. The embedded server has no TLS, so a proxy here brings it."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from batching.settings.settings import Settings, SettingsError
from batching.store.clients import connect, connect_async, store_url
from batching.store.held_connections import HeldConnection
from batching.store.server_check import check_server
from tests.support import eventually
from tests.timing import assert_within
from tests.tls import TlsProxy, make_certificates, needs_openssl, server_context

TOKENS = "{ferry}:tokens"
pytestmark = needs_openssl


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def proxy(certificates, redis_server):
    with contextlib.ExitStack() as cleanup:

        def start(name, *, wants_client=False):
            context = server_context(certificates, name, wants_client=wants_client)
            return cleanup.enter_context(TlsProxy(context, redis_server.socket_path))

        yield start


def ping(port, **files):
    settings = Settings(redis_url=f"rediss://localhost:{port}/0", **files)
    client = connect(store_url(settings), socket_timeout_s=5)
    try:
        return client.ping()
    finally:
        client.close()


def test_tls_connection_works_when_the_authority_is_the_named_one(proxy, certificates):
    assert ping(proxy("here").port, redis_ca_file=certificates / "authority.pem") is True


@pytest.mark.parametrize("name", ["stranger", "elsewhere"])
def test_tls_connection_is_refused_when_the_server_is_another(proxy, certificates, name):
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        ping(proxy(name).port, redis_ca_file=certificates / "authority.pem")


def test_tls_connection_is_refused_when_only_the_system_vouches(proxy):
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        ping(proxy("here").port)


def test_wait_over_tls_ends_at_once_when_it_is_interrupted(proxy, certificates, real_backend):
    # Given
    port, authority = proxy("here").port, certificates / "authority.pem"
    settings = Settings(redis_url=f"rediss://localhost:{port}/0", redis_ca_file=authority)
    with connect(store_url(settings)) as client, ThreadPoolExecutor(1) as pool:
        line = HeldConnection(client)
        waiting = pool.submit(line.call, ("BLPOP", TOKENS, 4.0))
        eventually(lambda: real_backend.client.info("clients")["blocked_clients"])

        # When
        started = time.monotonic()
        line.interrupt()

        # Then
        with pytest.raises(redis.ConnectionError):
            waiting.result(5.0)
        assert_within(time.monotonic() - started, 0.2)
        real_backend.client.rpush(TOKENS, "1")  # for the proxy, which still waits


def test_tls_connection_shows_our_certificate(proxy, certificates):
    # Given
    port = proxy("here", wants_client=True).port
    authority = certificates / "authority.pem"
    # When / Then
    with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
        ping(port, redis_ca_file=authority)
    assert ping(
        port,
        redis_ca_file=authority,
        redis_cert_file=certificates / "client.pem",
        redis_key_file=certificates / "client.key",
    )


async def test_renewed_files_are_read_by_the_next_connection(tmp_path, redis_server):
    # Given
    folder = make_certificates(tmp_path)
    context = server_context(folder, "here", wants_client=True)
    settings = Settings(
        redis_ca_file=folder / "authority.pem",
        redis_cert_file=folder / "client.pem",
        redis_key_file=folder / "client.key",
    )
    with TlsProxy(context, redis_server.socket_path) as proxy:
        url = store_url(replace(settings, redis_url=f"rediss://localhost:{proxy.port}/0"))
        async with connect_async(url) as client:
            assert await client.ping()
            await client.connection_pool.disconnect()
            # When
            renewed = server_context(make_certificates(folder), "here", wants_client=True)
            proxy.context = renewed
            # Then
            assert await client.ping()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"redis_ca_file": "client.key"},
            "client.key: no certificate in PEM .*NO_CERTIFICATE_OR_CRL_FOUND",
        ),
        ({"redis_ca_file": "none"}, "none: No such file"),
        (
            {"redis_cert_file": "client.pem", "redis_key_file": "here.key"},
            "client.pem and .*here.key: .*KEY_VALUES_MISMATCH",
        ),
        ({"redis_cert_file": "client.pem"}, "client.pem: no private key in PEM"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_start(certificates, files, reason):
    paths = {name: certificates / file for name, file in files.items()}
    with pytest.raises(SettingsError, match=reason):
        check_server(Settings(redis_url="rediss://localhost:1/0", **paths))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rediss://u:p@r:6379/0", "rediss://u:p@r:6379/0?ssl_ca_certs=%2Fa%20b.pem"),
        ("rediss://r?protocol=3", "rediss://r?protocol=3&ssl_ca_certs=%2Fa%20b.pem"),
    ],
)
def test_tls_files_travel_in_the_url(url, expected):
    assert store_url(Settings(redis_url=url, redis_ca_file=Path("/a b.pem"))) == expected
    assert store_url(Settings(redis_url=url)) == url
