"""Bad, doubled, long and odd input about jobs, on the server of the run."""

import http.client
import json
from collections.abc import Iterator

import pytest
import requests

from tests.e2e.archives import Ledger
from tests.e2e.ferry_process import FerryServer

pytestmark = pytest.mark.slow

ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def model(server: FerryServer, scripted: str, ledger: Ledger) -> Iterator[str]:
    with server.model(scripted, "edges", batch_size=1) as name:
        yield name


def ask(port: int, method: str, path: str, headers: list[tuple[str, bytes]]) -> tuple[int, bytes]:
    """Sends the path and the headers as they stand, doubled ones too."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)
    try:
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("Content-Length", "1" if method == "POST" else "0")
        connection.endheaders(b"x" if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["X-Request-Timeout-Ms", "X-Result-Ttl-S", "X-Priority"])
@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x10", b"1,2", "٣".encode(), b"9" * 9000])
def test_header_of_a_job_that_is_nonsense_is_refused(server, model, name, value):
    status, body = ask(
        server.port,
        "POST",
        f"/predictions/{model}",
        [("Prefer", b"respond-async"), (name, value)],
    )
    assert status == 400, body
    assert json.loads(body)["code"] == 400


@pytest.mark.parametrize(
    "prefer",
    [
        b"wait=" + b"9" * 9000,
        b'foo="bar',
        b";;;",
        b"a" * 9000,
        b"w\xc3\xa4rten",
    ],
)
def test_preference_that_is_nonsense_is_ignored(server, model, prefer):
    headers = [("Prefer", b"respond-async," + prefer)]
    status, body = ask(server.port, "POST", f"/predictions/{model}", headers)
    assert status == 202, body
    assert json.loads(body)["model"] == model


@pytest.mark.parametrize(
    "job_id",
    [
        "%00",
        "%ff",
        "A" * 32,
        "0" * 32,
        "0" * 33,
        "%7Bferry%7D:versions:x",
        "..%2fmodels",
        "a" * 4000,
        "%0d%0ax",
    ],
)
def test_odd_id_is_no_job_and_is_answered_in_json(server, job_id):
    for method, end in (("GET", ""), ("GET", "/result"), ("DELETE", "")):
        for port in (server.port, server.port + 1):
            status, body = ask(port, method, f"/jobs/{job_id}{end}", [])
            assert status in {404, 405}, (method, end, body)
            assert json.loads(body)["code"] == status
            assert len(body) < 500


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=x", 400),
        ("limit=-1", 400),
        ("limit=0", 400),
        ("limit=", 200),
        ("limit=" + "9" * 300, 200),
        ("cursor=-1", 400),
        ("cursor=x", 400),
        ("cursor=1.5", 400),
        ("cursor=" + "9" * 5000, 400),
        ("cursor=%C2%B2", 400),
        ("cursor=%D9%A3", 400),
        ("status=lost", 400),
        ("status=QUEUED", 400),
        ("model=%00", 200),
        ("model=" + "m" * 5000, 200),
        ("unknown=1", 200),
    ],
)
def test_nonsense_about_a_page_is_told(server, query, status):
    answer = requests.get(f"{server.management}/jobs?{query}", timeout=20)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert ("jobs" in answer.json()) is (status == 200)


def test_last_of_a_doubled_header_counts(server, model):
    headers = [
        ("Prefer", b"respond-async"),
        ("X-Priority", b"urgent"),
        ("X-Priority", b"high"),
        ("Idempotency-Key", b"first"),
        ("Idempotency-Key", b"second"),
    ]
    status, body = ask(server.port, "POST", f"/predictions/{model}", headers)
    assert status == 202, body
    again = server.predict(model, b"x", headers={**ASYNC, "Idempotency-Key": "second"})
    assert again.json()["id"] == json.loads(body)["id"]


def test_explanation_is_another_request_under_the_same_key(server, model):
    headers = {**ASYNC, "Idempotency-Key": "explained"}
    assert server.predict(model, b"x", headers=headers).status_code == 202
    url = f"{server.inference}/explanations/{model}"
    assert requests.post(url, b"x", headers=headers, timeout=20).status_code == 422
