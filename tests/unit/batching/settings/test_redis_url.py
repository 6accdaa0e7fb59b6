"""Which Redis URLs are understood, and how the others are refused."""

import pytest

from batching.settings.loading import load_settings
from batching.settings.redis_url import RedisUrl, RedisUrlError
from batching.settings.settings import SettingsError


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("redis://", [("localhost", 6379)]),
        ("redis://r", [("r", 6379)]),
        ("rediss://u:p@r:1/2?protocol=3", [("r", 1)]),
        ("redis://[::1]:7", [("::1", 7)]),
        ("redis+sentinel://a,b:2/main", [("a", 26379), ("b", 2)]),
        ("rediss+sentinel://:p%40@[::1]:3,c/main/1", [("::1", 3), ("c", 26379)]),
        ("redis+cluster://a,b:7000", [("a", 6379), ("b", 7000)]),
        ("rediss+cluster://u:p@a:1/0", [("a", 1)]),
        ("unix:///run/redis.sock", []),
    ],
)
def test_url_names_the_servers(url, addresses):
    assert list(RedisUrl.parse(url).addresses) == addresses


def test_url_of_sentinels_has_service_database_and_login():
    url = RedisUrl.parse("rediss+sentinel://us%65r:p%3Aw@a:1/main/3?sentinel_password=s%26")
    assert (url.service, url.db, url.is_tls, url.kind) == ("main", 3, True, "sentinel")
    assert (url.username, url.password) == ("user", "p:w")
    assert url.options == {"sentinel_password": "s&"}


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("r:6379", "not a URL"),
        ("http://r:6379", "http:// is unknown"),
        ("redis://a:1,b:2", "several hosts"),
        ("redis://r:none", "address 1 is not host:port"),
        ("redis://r:65536", "address 1 is not host:port"),
        ("redis://r/first", "database must be a number"),
        ("redis://r/1/2", "nothing comes after the database"),
        ("redis+sentinel://a:1,b:2", "needs the service's name"),
        ("redis+sentinel://a,,b/main", "address 2 is not host:port"),
        ("redis+cluster://a/1", "no database but 0"),
        ("redis+cluster://a?db=1", "no database but 0"),
        ("unix://", "needs the path of a socket"),
    ],
)
def test_settings_refuse_a_malformed_redis_url_and_say_why(url, complaint):
    with pytest.raises(SettingsError, match=f"redis_url: .*{complaint}"):
        load_settings(None, {"REDIS_URL": url}, {})


@pytest.mark.parametrize(
    "url", ["redis://:sec/ret@r", "redis://u:sec@ret@r:x", "redis+cluster://u:secret@a,b:x/1"]
)
def test_refusal_of_a_redis_url_repeats_no_password(url):
    with pytest.raises(RedisUrlError) as refused:
        RedisUrl.parse(url)
    assert "sec" not in str(refused.value)
    assert "ret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:secret@r/1?x=secret", "redis://r:6379/1"),
        ("redis+sentinel://u:secret@[::1]:5,b/m?sentinel_password=secret", "[::1]:5,b:26379/m"),
        ("unix://u:secret@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_url_is_shown_without_its_secrets(url, shown):
    text = RedisUrl.parse(url).without_secrets()
    assert text.endswith(shown)
    assert "secret" not in text


def test_settings_allow_tls_files_with_every_kind_of_tls():
    for scheme in ("rediss://r", "rediss+sentinel://r/main", "rediss+cluster://r"):
        settings, _ = load_settings(None, {"REDIS_URL": scheme, "FERRY_REDIS_CA_FILE": "/ca"}, {})
        assert str(settings.redis_ca_file) == "/ca"
    with pytest.raises(SettingsError, match=r"rediss\+cluster://"):
        load_settings(None, {"REDIS_URL": "redis+cluster://r", "FERRY_REDIS_CA_FILE": "/ca"}, {})
