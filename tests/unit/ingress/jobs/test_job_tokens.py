"""Idempotency keys where tokens are asked for."""

import pytest

from ingress.access.tokens import KeyScope
from tests.unit.ingress.access.test_key_file import key_of, keys, path

__all__ = ["keys", "path"]  # the fixtures

ONCE = {"Prefer": "respond-async", "Idempotency-Key": "one"}


@pytest.fixture
def submit(echo, keys, path):
    """Submits the same request with the inference key of now."""

    def send(body=b"x", **headers):
        token = {"Authorization": f"Bearer {key_of(path, KeyScope.INFERENCE)}"}
        return echo.predict("/predictions/echo", data=body, headers=ONCE | token | headers)

    return send


def test_key_outlives_the_token_that_it_was_sent_with(submit, keys, path):
    # Given
    first = submit()

    # When
    keys.renew("inference", f"Bearer {key_of(path, KeyScope.API)}")
    second = submit()

    # Then
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    assert submit(b"y").status_code == 422


def test_token_is_nowhere_in_redis(submit, echo, node, path):
    # Given
    node.pause()
    submit()
    token = key_of(path, KeyScope.INFERENCE)

    # When
    client = echo.services.client
    held = "".join(f"{name}{value_of(client, name)}" for name in client.keys("*"))
    node.resume()

    # Then
    assert "explain" in held  # the request is there
    assert token not in held


def value_of(client, name):
    """What a key holds."""
    readers = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda name: client.lrange(name, 0, -1),
        b"zset": lambda name: client.zrange(name, 0, -1),
        b"set": client.smembers,
    }
    return readers[client.type(name)](name)
