"""One try at a receiver: to whom the connection goes, and what is taken of the answer."""

import asyncio
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from batching.webhooks import ReceiverRules
from tests.http_server import serving
from tests.tls import make_certificates, needs_openssl, server_context
from workers.node.webhook_sender import Delivery, ReceiverAnswer

pytestmark = needs_openssl
HEADERS = {"webhook-id": "msg_1", "content-type": "application/json"}
NAME = "redis.example"  # of the certificate `elsewhere`


class Receiver(BaseHTTPRequestHandler):
    """Notes what comes and answers as the path says."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.headers["host"], self.path, self.headers["webhook-id"], body))
        status, _, kind = self.path.strip("/").partition("-")
        self.send_response(int(status))
        self.send_header("retry-after", "7")
        if status == "302":
            self.send_header("location", "/200")
        if kind == "held":
            self.send_header("content-length", "10")
        self.end_headers()
        if kind == "held":
            self.server.end.wait(60)
        elif kind == "large":
            self.wfile.write(b"x" * 100_000)
        elif kind == "cut":
            self.connection.close()

    def log_message(self, *arguments):
        pass


class Names:
    """A resolver that gives each answer once, and the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def receiver(certificates):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.seen, server.end = [], threading.Event()
    server.socket = server_context(certificates, "elsewhere").wrap_socket(
        server.socket, server_side=True
    )
    with serving(server):
        yield server
        server.end.set()


@pytest.fixture
def post(certificates):
    """Tries once, with this resolver and these hosts allowed to be anywhere."""

    def post(url, names, allowed=NAME):
        async def once():
            context = ssl.create_default_context(cafile=str(certificates / "authority.pem"))
            delivery = Delivery(ReceiverRules.of(False, allowed), context, names)
            try:
                return await delivery.post(url, HEADERS, b"{}")
            finally:
                await delivery.close()

        return asyncio.run(once())

    return post


@pytest.mark.parametrize("dot", ["", "."])
def test_connection_goes_to_the_address_and_tls_to_the_name(receiver, post, dot):
    names = Names(["127.0.0.1"])
    address = f"{NAME}{dot}:{receiver.server_port}"
    assert post(f"https://{address}/200", names) == ReceiverAnswer(200, "7")
    assert receiver.seen == [(address, "/200", "msg_1", b"{}")]
    assert names.asked == [(f"{NAME}{dot}", receiver.server_port)]


def test_another_name_than_the_certificate_has_is_refused(receiver, post):
    heard = post(
        f"https://other.example:{receiver.server_port}/200", Names(["127.0.0.1"]), "other.example"
    )
    assert heard.status == 0
    assert "certificate" in heard.error.lower()
    assert receiver.seen == []


def test_name_that_leads_inside_is_not_connected_to(receiver, post):
    url = f"https://{NAME}:{receiver.server_port}/200"
    for addresses in (["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["169.254.169.254"]):
        heard = post(url, Names(addresses), allowed="")
        assert heard == ReceiverAnswer(0, error=f"{NAME} leads to an address that is not public")
    assert receiver.seen == []


def test_name_that_is_rebound_leads_to_nobody(receiver, post, monkeypatch):
    # Given a name that is not allowed: public when it is checked, and this host afterwards
    names = Names(["203.0.114.1"], ["127.0.0.1"])
    connected = []
    connect = asyncio.BaseEventLoop.create_connection

    async def noting(loop, protocol, host=None, port=None, **options):
        connected.append(host)
        # Nobody's: no test sends anything to a network.
        raise OSError(f"no way to {host}")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", noting)
    # When
    heard = post(f"https://{NAME}:{receiver.server_port}/200", names, allowed="")
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connect)
    # Then only what was checked was tried, and the name was not asked for again
    assert heard.status == 0
    assert connected == ["203.0.114.1"]
    assert len(names.asked) == 1
    assert receiver.seen == []


@pytest.mark.parametrize("path", ["200-held", "200-cut", "200-large", "302"])
def test_status_counts_whatever_becomes_of_the_body_and_is_not_followed(receiver, post, path):
    url = f"https://{NAME}:{receiver.server_port}/{path}"
    assert post(url, Names(["127.0.0.1"])).status == int(path[:3])
    assert len(receiver.seen) == 1


def test_receiver_that_cannot_be_reached_is_an_error_and_no_exception(receiver, post):
    port = receiver.server_port
    receiver.server_close()
    assert post(f"https://{NAME}:{port}/200", Names(["127.0.0.1"])).error


def test_url_that_may_be_no_receiver_is_not_asked_for(post):
    names = Names(["93.184.216.34"])
    assert post("http://receiver.example/", names).error
    assert names.asked == []
