"""Webhooks of jobs: one real server, and the receiver of docs/jobs.md with TLS in front."""

import contextlib
import datetime
import json
import time
from http.server import ThreadingHTTPServer

import psutil
import pytest
from standardwebhooks import Webhook

from batching.models.spec import VersionKey
from batching.store.clients import at, connect
from batching.store.keys import VersionKeys
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import ferry_server
from tests.e2e.page_blocks import only_block
from tests.http_server import serving
from tests.support import eventually
from tests.tls import make_certificates, needs_openssl, server_context

pytestmark = [pytest.mark.slow, needs_openssl]

SECRETS = ("whsec_" + "QUFB" * 8, "whsec_" + "QkJC" * 8)
HANDLER = """
def handle(data, context):
    return data and ["fine" for _ in data]
"""


@pytest.fixture
def certificates(tmp_path):
    return make_certificates(tmp_path)


@pytest.fixture
def server(certificates, tmp_path):
    environment = {
        "FERRY_WEBHOOK_SECRETS": ",".join(SECRETS),
        "FERRY_WEBHOOK_ALLOWED_HOSTS": "localhost",
        "FERRY_WEBHOOK_CA_FILE": str(certificates / "authority.pem"),
    }
    with ferry_server(tmp_path, environment=environment) as running:
        running.register(make_archive(running.store, "fine", {"handler.py": HANDLER}))
        yield running


def test_receiver_of_the_page_is_told_and_knows_ours_from_others(
    server, certificates, monkeypatch, capsys
):
    # Given
    monkeypatch.setenv("FERRY_WEBHOOK_SECRETS", SECRETS[0])
    page = {"__name__": "page"}
    exec(only_block("jobs.md", "python", "Call me back"), page)
    told = []

    def is_ours(headers, body):
        told.append(({name.lower(): value for name, value in headers.items()}, body))
        return page_check(headers, body)

    page_check, page["is_ours"] = page["is_ours"], is_ours
    page["Receiver"].log_message = lambda *_: None
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), page["Receiver"])
    context = server_context(certificates, "here")
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)

    # When a job is to tell of its start and end
    with serving(receiver):
        headers = {
            "Prefer": "respond-async",
            "Webhook-Url": f"https://localhost:{receiver.server_port}/done",
            "Webhook-Events": "started,completed",
            "Webhook-Include": "result",
        }
        answer = server.predict("fine", b"x", headers=headers)
        assert answer.status_code == 202, answer.text
        job = answer.json()

        def is_delivered():
            known = server.http.get(job["cancel_url"], timeout=20).json()["webhook"]
            return len(told) == 2 and known["status"] == "delivered"

        eventually(is_delivered, 20)
        make_due(server)
        time.sleep(2.5)  # in which a node would tell it again

    # Then each was told once, to a receiver with either secret
    assert len(told) == 2
    for headers, body in told:
        for secret in SECRETS:
            Webhook(secret).verify(body, headers)
    messages = {message["type"]: message["data"] for message in (json.loads(b) for _, b in told)}
    assert messages.keys() == {"job.started", "job.succeeded"}
    ended = messages["job.succeeded"]
    assert (ended["id"], ended["status"]) == (job["id"], "succeeded")
    assert ended["result"]["body"] == "fine"
    assert ended["result_url"] == job["result_url"]
    assert f"job.succeeded {job['id']}" in capsys.readouterr().out

    # And the page's receiver takes no other message for ours
    real, body = told[-1]
    late = str(int(real["webhook-timestamp"]) - 600)
    for changed, content in (
        (real, body + b" "),
        (real | {"webhook-id": "another"}, body),
        (real | {"webhook-timestamp": late} | signed(SECRETS[0], real, late, body), body),
        (real | signed(SECRETS[1][:-1] + "A", real, real["webhook-timestamp"], body), body),
        ({}, body),
    ):
        assert not page_check(changed, content)
    assert page_check(real, body)


def make_due(server):
    """Moves the events of the model to now, in place of a wait."""
    # Of the server's own Redis only its parts know the address.
    parts = psutil.Process(server.process.pid).children(recursive=True)
    [url] = {part.environ().get("FERRY_REDIS_URL") for part in parts} - {None}
    keys = VersionKeys.of(VersionKey("fine", "1.0"))
    with contextlib.closing(at(connect(url), keys.tag)) as client:
        for event in client.zrange(keys.webhooks, 0, -1):
            client.zadd(keys.webhooks, {event: 0})


def signed(secret, headers, sent, body):
    """The signature that this secret's owner would send at this time."""
    at = datetime.datetime.fromtimestamp(int(sent), datetime.UTC)
    return {"webhook-signature": Webhook(secret).sign(headers["webhook-id"], at, body.decode())}
