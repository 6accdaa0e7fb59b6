"""Idempotency keys where tokens are asked for."""

import pytest

from batching.protocol import Part, Request
from ingress.access.tokens import KeyScope
from ingress.jobs.job_service import JobService
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


def test_key_outlives_the_token_that_it_was_sent_with(submit, keys):
    # Given
    first = submit()

    # When
    keys.renew(KeyScope.INFERENCE)
    second = submit()

    # Then
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    assert submit(b"y").status_code == 422


def test_keys_of_different_tokens_do_not_meet(submit, echo):
    # Given
    first = submit().json()["id"]
    store, registry = echo.services.jobs.service._store, echo.services.registry
    services = [
        JobService(store, registry, timeout_s=60, keep_s=60, submitters=name)
        for name in ("inference", "", "another")
    ]
    spec = registry.get("echo").versions["1.0"]
    request = Request({"explain": "False", "url_path": ""}, [Part("body", "", b"x")])

    # When
    found = [
        echo.services.on_loop(one.submit(spec, request, {"idempotency-key": "one"}, None))
        for one in services
    ]

    # Then
    assert [is_replayed for _, is_replayed in found] == [True, False, False]
    assert found[0][0].job_id == first
    assert len({job.job_id for job, _ in found}) == 3


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
