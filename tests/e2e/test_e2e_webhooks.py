"""Webhooks of jobs: one real server, and a receiver that verifies what it is told."""

import datetime
import json
import queue
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from standardwebhooks import Webhook

from batching.models.spec import VersionKey
from batching.store.clients import at, connect
from batching.store.keys import VersionKeys
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer, ferry_server
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


class Receiver(BaseHTTPRequestHandler):
    """Puts what it is told into a queue, and answers with what the path says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.told.put((headers, body))  # type: ignore[attr-defined]
        path = self.path.strip("/")
        status = self.server.statuses.pop(0) if path == "next" else int(path)  # type: ignore[attr-defined]
        if status:
            self.send_response(status)
            self.end_headers()
        else:
            self.server.held.get(timeout=60)  # type: ignore[attr-defined]

    def log_message(self, *arguments: Any) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that leave."""

    daemon_threads = True
    told: "queue.Queue[tuple[dict[str, str], bytes]]"
    held: "queue.Queue[None]"
    statuses: list[int]

    def handle_error(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make_certificates(tmp_path_factory.mktemp("certificates"))
    return folder


@pytest.fixture
def receiver(certificates: Path) -> Iterator[QuietServer]:
    server = QuietServer(("127.0.0.1", 0), Receiver)
    server.told, server.held, server.statuses = queue.Queue(), queue.Queue(), []
    context = server_context(certificates, "here")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server


@pytest.fixture(scope="module")
def server(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    folder = tmp_path_factory.mktemp("webhooks")
    environment = {
        "FERRY_WEBHOOK_SECRETS": ",".join(SECRETS),
        "FERRY_WEBHOOK_ALLOWED_HOSTS": "localhost",
        "FERRY_WEBHOOK_CA_FILE": str(certificates / "authority.pem"),
    }
    with ferry_server(folder, environment=environment) as running:
        running.register(make_archive(running.store, "fine", {"handler.py": HANDLER}))
        yield running


def submit(server: FerryServer, receiver: QuietServer, path: str, **headers: str) -> dict[str, Any]:
    url = f"https://localhost:{receiver.server_port}/{path}"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = server.predict(
        "fine", b"x", headers={"Prefer": "respond-async", "Webhook-Url": url} | sent
    )
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def verified(told: tuple[dict[str, str], bytes]) -> dict[str, Any]:
    """What a receiver with either secret understands."""
    headers, body = told
    for secret in SECRETS:
        Webhook(secret).verify(body, headers)
    message: dict[str, Any] = json.loads(body)
    return message


def webhook_of(server: FerryServer, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get(job["cancel_url"]).json()["webhook"]
    return found


def make_due(server: FerryServer) -> None:
    """Moves the events of the model to now, in place of a wait."""
    keys = VersionKeys.of(VersionKey("fine", "1.0"))
    with closing(_redis(server, keys.tag)) as client:
        for event in client.zrange(keys.webhooks, 0, -1):
            client.zadd(keys.webhooks, {event: 0})


def _redis(server: FerryServer, tag: str) -> redis.Redis:
    # Of the server's own Redis only its parts know the address.
    urls = set()
    for part in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            urls.add(part.environ().get("FERRY_REDIS_URL"))
    [url] = urls - {None}
    return at(connect(url), tag)


def test_receiver_is_told_once_of_start_and_end(server: FerryServer, receiver: QuietServer) -> None:
    # When
    job = submit(
        server, receiver, "200", Webhook_Events="started,completed", Webhook_Include="result"
    )
    # Then
    messages = [verified(receiver.told.get(timeout=20)) for _ in range(2)]
    assert {message["type"] for message in messages} == {"job.started", "job.succeeded"}
    [ended] = [message for message in messages if message["type"] == "job.succeeded"]
    assert (ended["data"]["id"], ended["data"]["status"]) == (job["id"], "succeeded")
    assert ended["data"]["result"]["body"] == "fine"
    assert ended["data"]["result_url"] == job["result_url"]
    eventually(lambda: webhook_of(server, job)["status"] == "delivered", 10)
    make_due(server)
    with pytest.raises(queue.Empty):
        receiver.told.get(timeout=2.5)


def test_receiver_of_the_page_knows_ours_from_others(
    server: FerryServer, certificates: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    # Given the page's receiver, with TLS in front
    monkeypatch.setenv("FERRY_WEBHOOK_SECRETS", SECRETS[0])
    page: dict[str, Any] = {"__name__": "page"}
    exec(only_block("jobs.md", "python", "Call me back"), page)
    told: list[tuple[Any, bytes]] = []

    def is_ours(headers: Any, body: bytes) -> bool:
        told.append((headers, body))
        return bool(page_check(headers, body))

    page_check, page["is_ours"] = page["is_ours"], is_ours
    page["Receiver"].log_message = lambda *_: None
    receiver = QuietServer(("127.0.0.1", 0), page["Receiver"])
    context = server_context(certificates, "here")
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)

    # When
    with serving(receiver):
        job = submit(server, receiver, "done")
        eventually(lambda: webhook_of(server, job)["status"] == "delivered", 20)

    # Then it took the message, and takes no other one for ours
    assert f"job.succeeded {job['id']}" in capsys.readouterr().out
    [(headers, body)] = told
    real = {name.lower(): value for name, value in headers.items()}
    assert page_check(real, body)
    late = str(int(real["webhook-timestamp"]) - 600)
    for changed, content in (
        (real, body + b" "),
        (real | {"webhook-id": "another"}, body),
        (real | {"webhook-timestamp": late} | signed(SECRETS[0], real, late, body), body),
        (real | signed(SECRETS[1][:-1] + "A", real, real["webhook-timestamp"], body), body),
        ({}, body),
    ):
        assert not page_check(changed, content)


def signed(secret: str, headers: dict[str, str], sent: str, body: bytes) -> dict[str, str]:
    """The signature that this secret's owner would send at this time."""
    at = datetime.datetime.fromtimestamp(int(sent), datetime.UTC)
    return {"webhook-signature": Webhook(secret).sign(headers["webhook-id"], at, body.decode())}
