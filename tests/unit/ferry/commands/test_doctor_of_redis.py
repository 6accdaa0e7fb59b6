"""What `ferry doctor` says of a Redis."""

import json

import pytest
from click.testing import CliRunner

from ferry.main import main
from ferry.process_tree.embedded_redis import (
    FSYNC_EVERY_SECOND,
    EmbeddedRedis,
    RedisData,
    find_server,
)
from tests.unit.ferry.process_tree.test_embedded_redis import ask


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    data = RedisData.lock(tmp_path_factory.mktemp("data"), FSYNC_EVERY_SECOND)
    with EmbeddedRedis(find_server(), data=data) as running:
        yield running
    data.release()


def doctor(url):
    done = CliRunner().invoke(main, ["doctor", url, "--json"])
    rows = json.loads(done.stdout)["rows"] if done.exit_code < 2 else []
    return done, {one["part"]: (one["effect"], one["text"]) for one in rows}


def configure(redis, name, value):
    assert ask(redis.socket_path, "CONFIG", "SET", name, value) == b"+OK\r\n"


def test_redis_is_told_by_what_it_keeps(redis):
    # Given a Redis that writes nothing down
    done, rows = doctor(redis.url)
    assert done.exit_code == 0
    assert rows["version"][0] == rows["maxmemory-policy"][0] == "same"
    effect, text = rows["persistence"]
    assert effect == "note"
    assert text.startswith("no append-only file: jobs end with this Redis")
    # When it does
    configure(redis, "appendonly", "yes")
    for fsync, effect in (("everysec", "same"), ("always", "same"), ("no", "note")):
        configure(redis, "appendfsync", fsync)
        # Then
        found, text = doctor(redis.url)[1]["persistence"]
        assert found == effect
        assert text.startswith(f"append-only file, appendfsync {fsync}: a machine that fails loses")


def test_redis_that_may_drop_what_was_accepted_must_change(redis):
    # Given
    configure(redis, "maxmemory-policy", "allkeys-lru")
    # When
    done, rows = doctor(redis.url)
    configure(redis, "maxmemory-policy", "noeviction")
    # Then
    assert done.exit_code == 1
    assert rows["maxmemory-policy"][0] == "must change"


def test_redis_that_does_not_answer_cannot_be_examined(tmp_path):
    done, _ = doctor(f"unix://{tmp_path}/none.sock")
    assert done.exit_code == 2
    assert "this Redis does not answer" in done.stderr
    assert "secret" not in doctor("redis://:secret@localhost:1")[0].output
