"""Answers in pieces: to slow clients, over unix sockets and TLS, to clients of HTTP/1.0."""

import contextlib
import http.client
import socket
import ssl

import pytest

from batching.settings.settings import Settings
from batching.store.worker_queue import ReplyCode
from ingress.http1.listener import Address
from tests.ports import free_ports
from tests.support import eventually
from tests.tls import needs_openssl
from tests.unit.ingress.sockets import listening, read_to_end

pytestmark = pytest.mark.slow  # whole servers on real sockets

REQUEST = b"POST /predictions/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"


FLOOD = REQUEST + b"x-flood: 1\r\n"


def test_client_that_reads_nothing_is_given_up(echo, node):
    # Given
    address = Address("127.0.0.1", free_ports(1))
    with (
        listening(echo, address, settings=Settings(unread_timeout_s=1.0)),
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        client.settimeout(20)
        client.connect((address.host, address.port))
        client.sendall(FLOOD + b"\r\nx")
        # When: its worker was held up, and is then told that the client has gone
        eventually(lambda: ReplyCode.FULL in node.codes, 20.0)
        eventually(lambda: ReplyCode.UNWANTED in node.codes, 20.0)
        # Then: the client finds out when it reads on
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                answer = answer[-16:] + piece
    assert not answer.endswith(b"0\r\n\r\n")
    spec = echo.registry.resolve("echo", None)
    eventually(lambda: echo.registry.queue(spec).open_requests == 0)


def test_head_of_a_stream_is_answered_at_once_and_the_connection_goes_on(echo, node):
    # Given a stream without an end
    address = Address("127.0.0.1", free_ports(1))
    with listening(echo, address), socket.create_connection((address.host, address.port)) as client:
        client.settimeout(20)
        # When
        client.sendall(FLOOD.replace(b"POST", b"HEAD") + b"\r\nx")
        head = client.recv(65536)
        # Then its worker is told that the rest is not wanted
        eventually(lambda: ReplyCode.UNWANTED in node.codes, 20.0)
        # And the next answer follows the head
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        following = read_to_end(client)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    assert head.count(b"\r\n\r\n") == 1
    assert b"connection: keep-alive" in head
    assert b"content-length" not in head
    assert following.startswith(b"HTTP/1.1 200 ")


def ask(client, *lines, version=b"1.1", method=b"POST"):
    """Head and body of the answer to a request with these header lines."""
    with client:
        client.settimeout(20)
        request = REQUEST.replace(b"1.1", version).replace(b"POST", method)
        client.sendall(request + b"\r\n".join([b"Connection: close", *lines, b"", b"x"]))
        pieces = []
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while piece := client.recv(65536):
                pieces.append(piece)
        head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
        return head.lower(), body


def test_http_1_0_gets_the_answer_in_one_piece(echo):
    for lines, status, words in (
        ([b"x-pieces: one,two"], b"200", b"onetwobody:|x"),
        # Nothing was sent yet, so there is still room for an error.
        ([b"x-pieces: one,two,three,four,five"], b"500", b"too large for this connection"),
        ([b"x-pieces: one", b"x-fail: 1"], b"500", b"The rest of the answer was lost."),
    ):
        with listening(echo, Address("127.0.0.1", port := free_ports(1))):
            # When
            client = socket.create_connection(("127.0.0.1", port))
            head, body = ask(client, *lines, version=b"1.0")
        # Then
        assert head.startswith(b"http/1.1 " + status)
        assert b"content-length: %d" % len(body) in head
        assert words in body


def test_unix_socket_gets_its_stream(echo, tmp_path):
    # Given a file that a killed server has left
    path = tmp_path / "inference.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening(echo, Address("", 0, path)):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        # When / Then
        assert ask(client, b"x-pieces: one")[1] == b"3\r\none\r\n7\r\nbody:|x\r\n0\r\n\r\n"
    assert not path.exists()


@pytest.mark.parametrize(
    ("listens", "connects"), [("::1", "::1"), ("::", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")]
)
def test_client_of_http_1_0_keeps_its_connection_on_any_address(echo, listens, connects):
    # Given a client that, as ApacheBench and old proxies do, asks for it
    port = free_port_for(listens)
    client = http.client.HTTPConnection(connects, port, timeout=20)
    client._http_vsn, client._http_vsn_str = 10, "HTTP/1.0"
    own_ports = set()
    with listening(echo, Address(listens, port)), contextlib.closing(client):
        for text in (b"one", b"", b"three"):
            # When
            client.request("POST", "/predictions/echo", text, {"Connection": "Keep-Alive"})
            own_ports.add(client.sock.getsockname()[1])
            answer = client.getresponse()
            # Then
            assert (answer.status, answer.read()) == (200, b"body:|" + text)
            assert answer.headers["connection"] == "keep-alive"
    assert len(own_ports) == 1


@needs_openssl
def test_stream_is_sent_and_broken_off_through_tls(echo, tls):
    # Given
    context = ssl.create_default_context(cafile=str(tls.certificate_file))
    port = free_ports(1)

    def connect_to():
        plain = socket.create_connection(("127.0.0.1", port))
        return context.wrap_socket(plain, server_hostname="localhost")

    with listening(echo, Address("127.0.0.1", port, is_tls=True), tls.context):
        # When
        whole = ask(connect_to(), b"x-pieces: one")
        broken = ask(connect_to(), b"x-pieces: one", b"x-fail: 1")
    # Then
    assert whole[1].endswith(b"\r\n0\r\n\r\n")
    assert broken[1] == b"3\r\none\r\n"


def free_port_for(host):
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    return free_ports(1)


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False
