"""Which URLs clients are told, directly and behind proxies."""

import pytest

from batching.settings.values import TrustedProxies

PROXIES = TrustedProxies.of("10.1.0.0/16, fd00::/8")
FORWARDED = {
    "host": "inside:8080",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "models.example.com",
    "x-forwarded-prefix": "/serving/v1/",
}
OUTSIDE = "https://models.example.com/serving/v1"


def base_url(headers, peer="10.1.2.3", proxies=PROXIES):
    return proxies.base_url(headers, scheme="http", peer=peer)


@pytest.mark.parametrize("peer", ["10.1.2.3", "fd00::1", "::ffff:10.1.2.3"])
def test_trusted_proxy_says_what_its_client_asked(peer):
    assert base_url(FORWARDED, peer) == OUTSIDE
    # And what the nearest proxy wrote counts
    headers = {name: f"made.up, {value}" for name, value in FORWARDED.items() if name != "host"}
    assert base_url(headers, peer) == OUTSIDE


@pytest.mark.parametrize("peer", ["10.2.0.1", "127.0.0.1", "::1", "::ffff:10.2.0.1", "", "x"])
def test_others_are_not_believed(peer):
    assert base_url(FORWARDED, peer) == "http://inside:8080"
    assert base_url(FORWARDED, "10.1.2.3", TrustedProxies()) == "http://inside:8080"


def test_unix_sockets_are_believed_where_that_is_set():
    assert base_url(FORWARDED, "", TrustedProxies.of("unix")) == OUTSIDE
    assert base_url(FORWARDED, "10.1.2.3", TrustedProxies.of("unix")) == "http://inside:8080"


ODD_HOSTS = (
    *("user@evil.example", "evil.example/path", "evil.example?x", "evil.example#x", "[::1", ""),
    *("evil.example:99:99", "evil.example:port", "evil example", "evil\x00example", "a" * 254),
    *("evil.example\nx", "é.example", "%65vil.example"),
)


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_host_that_is_none_is_ignored(host):
    assert base_url({"host": host}) == "http://localhost"
    assert base_url({"host": "good:1", "x-forwarded-host": host}) == "http://good:1"


@pytest.mark.parametrize("host", ["a", "my_service:8080", "1.2.3.4:80", "[::1]:8080", "[::]"])
def test_host_is_kept_as_it_came(host):
    assert base_url({"host": host}) == f"http://{host}"


ODD_PREFIXES = ("no-slash", "//evil.example", "/a//b", "/../a", "/a/..", "/a b", "/a?b", "/%2e%2e")


@pytest.mark.parametrize("prefix", [*ODD_PREFIXES, "/a\x00", '/"', "/" + "a" * 256])
def test_prefix_that_is_no_plain_path_is_ignored(prefix):
    assert base_url({"host": "a", "x-forwarded-prefix": prefix}) == "http://a"


@pytest.mark.parametrize("proto", ["javascript", "https://", "https\x00", "h" * 9999])
def test_other_protocols_are_ignored(proto):
    assert base_url({"host": "a", "x-forwarded-proto": proto}) == "http://a"
