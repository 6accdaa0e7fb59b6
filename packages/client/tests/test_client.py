"""What the client sends, what it makes of answers, and when it tries again."""

import asyncio
import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferry
from packages.client.tests.answering_server import (
    JOB,
    JOB_ID,
    LOST,
    AnsweringServer,
    answer,
    refusal,
)
from tests.ports import free_ports
from tests.tls import needs_openssl, write_certificate

AGAIN = refusal(503, "QueueFullException", retry_after="0")


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with AnsweringServer().running() as running:
        yield running


@pytest.fixture
def client(server: AnsweringServer) -> Iterator[ferry.Client]:
    with ferry.Client(server.url, patience_s=5) as made:
        yield made


@pytest.mark.parametrize(
    "case",
    [
        (b"\xff\x00", None, b"\xff\x00"),
        ("größer", "text/plain; charset=utf-8", "größer".encode()),
        ({"a": [1]}, "application/json", b'{"a": [1]}'),
        ([1, 2], "application/json", b"[1, 2]"),
        (Path("row.json"), "application/json", b"{}"),
    ],
)
def test_prediction_sends_data_as_what_it_is(server, client, tmp_path, case):
    # Given
    data, content_type, body = case
    if isinstance(data, Path):
        data = tmp_path / data
        data.write_text("{}")
    server.will(answer(200, {"cat": 0.9}, content_type="application/json", x_request_id="r"))
    # When
    found = client.predict("m", data, version="2", timeout_s=1.5)
    # Then
    assert (found.status, found.json(), found.request_id) == (200, {"cat": 0.9}, "r")
    assert found.content_type == "application/json"
    [(method, path, headers, sent)] = server.asked
    assert (method, path, sent) == ("POST", "/predictions/m/2", body)
    assert headers.get("content-type") == content_type
    assert headers["x-request-timeout-ms"] == "1500"


def test_job_is_what_the_server_says(server, client):
    # Given
    failed = {"code": 507, "type": "T", "message": "no memory"}
    progress = {"share": 0.4}
    server.will(
        answer(202, JOB),
        answer(
            200, {**JOB, "status": "failed", "error": failed, "attempts": 2, "progress": progress}
        ),
    )
    # When
    job = client.submit("m", b"x", idempotency_key="k", result_ttl_s=60, priority="high")
    # Then
    assert (job.id, job.status, job.state.position) == (JOB_ID, "queued", 3)
    created = datetime.datetime(2026, 11, 25, 20, 0, 0, 125_000, datetime.UTC)
    assert (job.state.created_at, job.state.finished_at) == (created, None)
    headers = server.asked[0][2]
    assert headers["prefer"] == "respond-async"
    assert headers["idempotency-key"] == "k"
    assert (headers["x-result-ttl-s"], headers["x-priority"]) == ("60", "high")
    # When
    assert job.wait() is job
    # Then
    assert server.asked[1][2]["prefer"] == "wait=30"
    assert job.state.is_final
    assert job.state.error == ferry.JobError(507, "T", "no memory")
    assert job.state.attempts == 2
    assert job.progress == ferry.JobProgress(0.4)


def test_token_is_sent_as_given_or_as_the_environment_has_it(server, monkeypatch):
    monkeypatch.setenv("FERRY_TOKEN", "of-environment")
    for token, sent in (("given", "Bearer given"), (None, "Bearer of-environment"), ("", None)):
        server.will(answer(200))
        with ferry.Client(server.url, token) as client:
            client.predict("m", b"")
        assert server.asked[-1][2].get("authorization") == sent


def test_request_is_sent_again_when_the_server_says_later(server, client):
    # Given
    server.will(AGAIN, AGAIN, answer(200, b"ok"))
    # When / Then
    assert client.predict("m", b"x").content == b"ok"
    assert [body for _, _, _, body in server.asked] == [b"x"] * 3


def test_wait_for_a_worker_is_told_once(server, client, caplog):
    # Given
    away = refusal(503, retry_after="0", x_ferry_reason="no_worker")
    server.will(away, away, answer(200, b"ok"))
    # When
    client.predict("m", b"x")
    # Then
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("ferry")
    ] == ["No.; trying again for 5 s"]


def test_request_is_given_up_when_the_server_says_much_later(server, client):
    # Given
    server.will(refusal(503, "QueueFullException", retry_after="100"))
    # When / Then
    with pytest.raises(ferry.Overloaded, match=r"No\. \(HTTP 503\)"):
        client.predict("m", b"x")
    assert len(server.asked) == 1


def test_submit_whose_answer_was_lost_is_sent_again_with_its_key(server, client):
    # Given a server that has answered before
    server.will(answer(200), LOST, answer(202, JOB))
    client.predict("m", b"")
    # When
    assert client.submit("m", b"x").id == JOB_ID
    # Then
    first, second = (headers["idempotency-key"] for _, _, headers, _ in server.asked[1:])
    assert first == second
    assert len(first) == 32


def test_prediction_whose_answer_was_lost_is_not_sent_again(server, client):
    # Given
    server.will(answer(200), LOST)
    client.predict("m", b"")
    # When / Then
    with pytest.raises(ferry.ServerUnreachable, match=f"the connection to {server.url} broke"):
        client.predict("m", b"x")
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:{free}", "nothing answers at {url} ([Errno 111] Connection refused)"),
        ("https://127.0.0.1:{port}", "no TLS at {url} (WRONG_VERSION_NUMBER): is it http://?"),
        ("localhost:{port}", "not a URL like http://host:port: {url}"),
    ],
)
def test_wrong_address_is_told_at_once(server, address, said):
    url = address.format(free=free_ports(1), port=server.http.server_port)
    with ferry.Client(url) as client, pytest.raises(ferry.ServerUnreachable) as caught:
        client.submit("m", b"")
    assert str(caught.value).startswith(said.format(url=url))


@needs_openssl
def test_certificate_that_is_not_trusted_is_told_and_how_it_would_be(server, tmp_path, monkeypatch):
    # Given
    pair = write_certificate(tmp_path)
    pair.open()
    server.http.socket = pair.context.wrap_socket(server.http.socket, server_side=True)
    url = server.url.replace("http://127.0.0.1", "https://localhost")
    server.will(answer(200, b"ok"))
    # When / Then
    with ferry.Client(url) as client, pytest.raises(ferry.ServerUnreachable) as caught:
        client.predict("m", b"")
    assert f"certificate of {url} is not trusted: self-signed certificate." in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate_file))
    with ferry.Client(url) as client:
        assert client.predict("m", b"").text == "ok"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_server_on_this_machine_is_not_looked_for_behind_a_proxy(server, monkeypatch, variable):
    # Given a proxy of which httpx knows how to speak to it, or does not
    monkeypatch.delenv("NO_PROXY", raising=False)
    scheme = "http" if variable == "HTTP_PROXY" else "socks5"
    monkeypatch.setenv(variable, f"{scheme}://127.0.0.1:{free_ports(1)}")
    # When / Then
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        server.will(answer(200, b"ok"))
        with ferry.Client(url) as client:
            assert client.predict("m", b"").text == "ok"


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (refusal(400), ferry.BadRequest),
        (refusal(400, "InvalidKeyException"), ferry.Unauthorized),
        (refusal(401), ferry.Unauthorized),
        (refusal(404), ferry.NotFound),
        (refusal(409), ferry.Conflict),
        (refusal(410), ferry.ResultGone),
        (refusal(413), ferry.BadRequest),
        (refusal(422), ferry.Conflict),
        (refusal(429), ferry.Overloaded),
        (refusal(503), ferry.PredictionFailed),
        (refusal(507), ferry.PredictionFailed),
        (answer(502, b"<h1>Bad gateway</h1>"), ferry.PredictionFailed),
        (answer(500, [1]), ferry.PredictionFailed),
    ],
)
def test_refusal_is_an_error_of_its_kind(server, client, refused, kind):
    server.will(refused)
    with pytest.raises(ferry.AnswerError) as caught:
        client.predict("m", b"x")
    assert type(caught.value) is kind
    assert caught.value.status == refused[0]
    assert isinstance(caught.value, ferry.FerryError)


def test_prediction_that_the_server_makes_a_job_of_is_waited_for(server, client):
    # Given
    accepted = answer(202, JOB, location=f"http://host/jobs/{JOB_ID}")
    server.will(accepted, answer(200, b"ok", x_request_id=JOB_ID), answer(202, b"handler's own"))
    # When / Then
    assert client.predict("m", b"x").content == b"ok"
    assert server.methods() == ["POST /predictions/m", f"GET /jobs/{JOB_ID}/result"]
    assert client.predict("m", b"x").status == 202


def test_server_without_jobs_is_told_apart(server, client):
    server.will(answer(200, b"ok"))
    with pytest.raises(ferry.FerryError, match="something other than a job"):
        client.submit("m", b"x")


def job_in_hand(server: AnsweringServer, client: ferry.Client) -> ferry.Job:
    server.will(answer(200, JOB))
    return client.job(JOB_ID)


def test_result_is_waited_for_and_is_whatever_the_handler_gave(server, client):
    # Given
    job = job_in_hand(server, client)
    server.will(
        answer(202, JOB, retry_after="1"),
        answer(202, b"taken", x_request_id=JOB_ID),
        refusal(503, retry_after="0", x_request_id=JOB_ID),
    )
    # When / Then
    found = job.result()
    assert (found.status, found.content) == (202, b"taken")
    assert server.methods()[1:] == [f"GET /jobs/{JOB_ID}/result"] * 2
    assert server.asked[1][2]["prefer"] == "wait=30"
    with pytest.raises(ferry.AnswerError) as caught:
        job.result()
    assert (caught.value.job_id, len(server.asked)) == (JOB_ID, 4)


def test_wait_ends_in_time(server, client):
    # Given
    job = job_in_hand(server, client)
    server.will(answer(200, JOB), answer(202, JOB))
    # When / Then
    for waiting in (job.wait, job.result):
        with pytest.raises(ferry.WaitTimeout, match=JOB_ID):
            waiting(0)
    assert issubclass(ferry.WaitTimeout, TimeoutError)


def test_job_is_cancelled_and_looked_at_again(server, client):
    job = job_in_hand(server, client)
    server.will(answer(200, {**JOB, "status": "running"}), answer(200, JOB))
    assert job.cancel().status == "running"
    assert job.refresh().status == "queued"
    assert server.methods()[1:] == [f"DELETE /jobs/{JOB_ID}", f"GET /jobs/{JOB_ID}"]


def test_client_of_an_event_loop_does_the_same(server):
    async def use() -> None:
        async with ferry.AsyncClient(server.url, "t", patience_s=5) as client:
            server.will(AGAIN, answer(200, b"ok"))
            assert (await client.predict("m", b"x")).content == b"ok"
            server.will(LOST, answer(202, JOB))
            job = await client.submit("m", {"a": 1})
            server.will(answer(200, JOB), answer(200, b"later", x_request_id=JOB_ID))
            assert (await job.refresh()).id == JOB_ID
            assert (await job.result()).text == "later"
            server.will(answer(200, JOB), answer(200, {**JOB, "status": "cancelled"}))
            assert (await (await client.job(JOB_ID)).cancel()).status == "cancelled"
            server.will(answer(200, {**JOB, "status": "failed"}))
            assert (await job.wait(1)).status == "failed"

    asyncio.run(use())
    assert json.loads(server.asked[3][3]) == {"a": 1}
    assert {headers["authorization"] for _, _, headers, _ in server.asked} == {"Bearer t"}


def test_misspelt_name_is_told():
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = ferry.Clinet
    assert all(getattr(ferry, name) for name in ferry.__all__)
