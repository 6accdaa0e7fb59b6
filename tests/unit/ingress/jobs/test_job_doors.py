"""Jobs through both HTTP doors, and while Redis is away."""

import pytest
import requests

from ingress.role import Role
from tests.support import eventually

ASYNC = {"Prefer": "respond-async"}
NO_JOB = "/jobs/" + "0" * 32


def through_flask(echo):
    """Asks the Flask application of the inference port, as another WSGI server would run it."""
    client = echo.apps[Role.INFERENCE].test_client()

    def ask(method, path, data=b"", headers=None):
        answer = client.open(path, method=method, data=data, headers=headers)
        return answer.status_code, answer.get_json(silent=True), answer.headers, answer.data

    return ask


def through_router(echo):
    """Asks the listener of the inference port."""

    def ask(method, path, **options):
        answer = echo.predict(path, method, **options)
        is_json = answer.headers.get("content-type") == "application/json" and answer.content
        document = answer.json() if is_json else None
        return answer.status_code, document, answer.headers, answer.content

    return ask


@pytest.fixture(params=[through_flask, through_router])
def ask(request, echo):
    return request.param(echo)


def test_job_is_accepted_found_and_let_go_through_each_door(ask):
    # When
    status, job, headers, _ = ask("POST", "/predictions/echo", data=b"hello", headers=ASYNC)

    # Then
    path = f"/jobs/{job['id']}"
    assert status == 202
    assert headers["location"].startswith("http://")
    assert headers["location"].endswith(path)
    _, job, headers, _ = ask("GET", path, headers={"Prefer": "wait=20"})
    assert job["status"] in {"running", "succeeded"}
    status, _, _, body = ask("GET", f"{path}/result", headers={"Prefer": "wait=20"})
    assert (status, body) == (200, b"body:|hello")
    _, job, headers, _ = ask("GET", path)
    assert job["status"] == "succeeded"
    status, _, _, body = ask("GET", path, headers={"If-None-Match": headers["etag"]})
    assert (status, body) == (304, b"")
    assert ask("DELETE", f"{path}/", headers={"If-None-Match": headers["etag"]})[0] == 200
    assert ask("GET", f"{path}/result")[0] == 410


@pytest.mark.parametrize("trusted_proxies", ["127.0.0.0/8", "10.0.0.0/8"])
def test_urls_are_those_of_a_trusted_proxy(ask, echo, trusted_proxies):
    # Given
    is_trusted = trusted_proxies.startswith("127.")
    forwarded = {
        "Host": "inside:1",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "outside.example",
        "X-Forwarded-Prefix": "/models",
    }
    begin = "https://outside.example/models/jobs/" if is_trusted else "http://inside:1/jobs/"

    # When
    _, job, headers, _ = ask("POST", "/predictions/echo", data=b"x", headers=ASYNC | forwarded)

    # Then
    urls = [headers["location"], job["cancel_url"], job["result_url"]]
    path = f"/jobs/{job['id']}"
    _, job, _, _ = ask("GET", path, headers=forwarded)
    [listed] = echo.manage("GET", "/jobs", headers=forwarded).json()["jobs"]
    urls += [job["cancel_url"], listed["cancel_url"]]
    assert all(url.startswith(begin) for url in urls), urls


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_other_methods_are_not_allowed(ask, method):
    assert ask(method, NO_JOB)[0] == 405


def test_jobs_cannot_be_asked_for_while_redis_is_away(echo, monkeypatch):
    # Given a job, and then no Redis
    ask = through_router(echo)
    _, job, _, _ = ask("POST", "/predictions/echo", data=b"x", headers=ASYNC)
    path = f"/jobs/{job['id']}"
    eventually(lambda: ask("GET", path)[1]["status"] == "succeeded")

    async def refuse(*_, **__):
        raise requests.ConnectionError  # an OSError, as a broken connection's

    for verb in ("find", "submit", "cancel", "newest", "retry"):
        monkeypatch.setattr(echo.services.jobs._store, verb, refuse)

    # When / Then
    asked = [
        ask("GET", path),
        ask("GET", f"{path}/result"),
        ask("DELETE", path),
        ask("POST", "/predictions/echo", data=b"x", headers=ASYNC),
    ]
    assert [(status, answer["type"]) for status, answer, *_ in asked] == [
        (503, "ServiceUnavailableException")
    ] * 4
    assert echo.manage("GET", "/jobs").status_code == 503
    assert echo.manage("POST", f"{path}/retry").status_code == 503


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "forgotten"])
def test_client_is_told_to_come_again_when_redis_was_emptied(echo, is_known):
    # Given a Redis that knows no model, and no node that has brought them back yet
    echo.predict("/predictions/echo", data=b"x")
    echo.services.client.flushall()
    if not is_known:
        # A worker that is reported again is announced as a change of its model.
        echo.services.catalog.forget("echo")

    # When
    answer = echo.predict("/predictions/echo", data=b"x", headers=ASYNC)

    # Then
    assert (answer.status_code, answer.headers["x-ferry-reason"]) == (503, "queue_lost")
    assert int(answer.headers["retry-after"]) >= 1
