"""What is refused and what is said about a Redis at start."""

import logging

import pytest

from batching.models.statuses import NodeStatus
from batching.protocol import WIRE_VERSION
from batching.settings.settings import Settings, SettingsError, UnusableNow
from batching.store import keys
from batching.store.server_check import check_client, check_nodes, check_server
from tests.support import DEAD_AFTER_MS

THEIRS = NodeStatus("node-b", "host", 1, "now", wire_version=WIRE_VERSION + 1)


class OldServer:
    """Answers INFO like servers that cannot be started here."""

    def __init__(self, version, policy="noeviction"):
        self._answer = {"redis_version": version, "maxmemory_policy": policy}

    def info(self):
        return self._answer


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
    assert "registered" in line


def test_silent_redis_is_not_refused(tmp_path, caplog):
    # When
    with caplog.at_level(logging.WARNING):
        check_server(Settings(redis_url=f"unix://user:secret@{tmp_path}/no_server.sock"))
    # Then
    (line,) = caplog.messages
    assert "could not be checked" in line
    assert "secret" not in line


def test_missing_redis_is_named():
    with pytest.raises(SettingsError, match="which Redis"):
        check_server(Settings())


def test_nodes_of_another_release_are_refused_while_they_live(harness):
    # Given
    harness.join(NodeStatus("node-a", "host", 1, "now", wire_version=WIRE_VERSION))
    harness.join(THEIRS)
    # When / Then
    words = f"wire version {WIRE_VERSION + 1}, here {WIRE_VERSION}.* Stop those nodes first"
    with pytest.raises(UnusableNow, match=words):
        check_nodes(harness.client, DEAD_AFTER_MS)
    # When it has been silent for so long that it is dead
    harness.client.zincrby(keys.NODES, -2 * DEAD_AFTER_MS, "node-b")
    # Then
    check_nodes(harness.client, DEAD_AFTER_MS)


@pytest.mark.parametrize("record", [None, b"hello", b"[]", b'{"colour": 1}', b"[" * 9999])
def test_unreadable_record_of_a_node_keeps_no_other_node_from_starting(harness, record):
    # Given
    harness.join(THEIRS)
    harness.client.hdel(keys.NODE_INFO, "node-b")
    if record is not None:
        harness.client.hset(keys.NODE_INFO, "node-b", record)
    # When / Then
    check_nodes(harness.client, DEAD_AFTER_MS)


def test_node_that_does_not_say_is_of_the_first_wire_version():
    text = '{"node_id": "a", "hostname": "h", "pid": 1, "started_at": "now"}'
    assert NodeStatus.from_json(text).wire_version == 1
