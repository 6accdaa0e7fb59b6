"""What is refused and what is said about a Redis at start."""

import logging

import pytest

from batching.settings import Settings, SettingsError
from batching.store.server_check import check_client, check_server


class OldServer:
    """Answers INFO like servers that cannot be started here."""

    def __init__(self, version, policy="noeviction"):
        self._answers = {
            "server": {"redis_version": version},
            "memory": {"maxmemory_policy": policy},
        }

    def info(self, section):
        return self._answers[section]


@pytest.mark.parametrize("version", ["6.2.14", "5.0.0", "6.9"])
def test_old_redis_is_refused(version):
    with pytest.raises(SettingsError, match=f"Redis {version} is too old"):
        check_client(OldServer(version))


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.2.2", "10.0", ""])
def test_newer_and_unknown_redis_is_taken(version, caplog):
    check_client(OldServer(version))
    assert caplog.messages == []


def test_real_server_is_taken_and_its_policy_is_looked_at(real_backend, caplog):
    # Given
    check_client(real_backend.client)
    assert caplog.messages == []
    real_backend.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        # When
        check_server(Settings(redis_url=real_backend.url))
    finally:
        real_backend.client.config_set("maxmemory-policy", "noeviction")
    # Then
    (line,) = caplog.messages
    assert "allkeys-lru" in line
    assert "noeviction" in line


def test_silent_redis_is_not_refused(tmp_path, caplog):
    # When
    with caplog.at_level(logging.WARNING):
        check_server(Settings(redis_url=f"unix://user:secret@{tmp_path}/nobody.sock"))
    # Then
    (line,) = caplog.messages
    assert "could not be checked" in line
    assert "secret" not in line


def test_missing_redis_is_named():
    with pytest.raises(SettingsError, match="which Redis"):
        check_server(Settings())
