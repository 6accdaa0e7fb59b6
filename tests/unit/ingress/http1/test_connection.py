"""HTTP/1.1 as the listeners speak it, without an ingress behind them."""

import asyncio
import contextlib
import resource
import socket

import pytest
import uvloop

from batching.settings.settings import Settings
from ingress.http1.exchange import AHEAD_BYTES
from ingress.http1.heads import LEAST_HEADER_BYTES
from ingress.http1.listener import Address, AddressUnavailable, Listener
from ingress.torchserve.answers import error_answer
from tests.support import came_true, eventually
from tests.unit.ingress.sockets import connect_to, listener, read_to_end, statuses

CLOSE = b"Connection: close\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
MANY_HEADERS = b"X: y\r\n" * (Settings().max_header_size_bytes // LEAST_HEADER_BYTES + 1)
LARGE_BYTES = 2 * 2**20


async def whole(exchange):
    return await exchange.read_body(100 * LARGE_BYTES, 20.0)


async def broken_off():
    yield b"abc"
    raise RuntimeError


class Application:
    """Answers with what it was asked; some paths ask for more."""

    def __init__(self):
        self.authorizer = asyncio.Event()
        self.seen = []
        self.taken_bytes = 0
        self.refused = []
        self.answered = []
        self.listener = None  # that it answers for
        self.after = lambda: None

    async def __call__(self, exchange):  # noqa: C901 - a path for each case
        self.seen.append(exchange)
        match exchange.path:
            case "/raises":
                raise RuntimeError
            case "/forgets":
                return
            case "/splits":
                exchange.respond(200, [("x-a", "b\r\nx-c: d")], b"")
            case "/stream":
                await exchange.respond_in_pieces(200, [], broken_off())
            case "/large":
                await whole(exchange)
                exchange.respond(200, [], bytes(LARGE_BYTES))
            case "/204" | "/304" as path:
                exchange.respond(int(path[1:]), [], b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            case "/unread":
                self.echo(exchange, b"")
            case "/late":
                await self.authorizer.wait()
                self.taken_bytes = len(await whole(exchange))
                self.echo(exchange, b"")
            case "/left":
                left = asyncio.Event()
                exchange.on_left = left.set
                await self.authorizer.wait()
                self.echo(exchange, b"left" if left.is_set() else b"there")
            case "/waits/watched":
                await self.authorizer.wait()
                self.echo(exchange, b"")
                self.after()
            case path:
                if path == "/waits":
                    await self.authorizer.wait()
                self.echo(exchange, await whole(exchange))

    def note_answer(self, status, client, exchange):
        assert client.startswith("127.0.0.1:")
        (self.refused if exchange is None else self.answered).append(status)

    def echo(self, exchange, body):
        words = f"{exchange.method} {exchange.path}?{exchange.query} ".encode()
        exchange.respond(200, [("x-a", "b")], words + body)


@pytest.fixture
def serve():
    """Runs a client's blocking calls beside a listener: `serve(client)`, with its URL and app."""

    def run(client):
        async def main():
            app = Application()
            async with listener(app, note_answer=app.note_answer) as app.listener:
                app.run = asyncio.get_running_loop().call_soon_threadsafe
                app.open = lambda: app.run(app.authorizer.set)
                app.stop = lambda: app.run(app.listener.stop)
                try:
                    return await asyncio.to_thread(client, str(app.listener.address), app)
                finally:
                    app.authorizer.set()

        return uvloop.run(main())  # as the ingress does

    return run


def bodies(answer):
    return [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]]


def sent(*requests):
    """A client that sends this and reads to the end."""

    def client(url, _):
        with connect_to(url) as connection:
            connection.sendall(b"".join(requests))
            return read_to_end(connection)

    return client


def get(path, lines=b"", version=b"1.1", method=b"GET"):
    return b"%b %b HTTP/%b\r\nHost: x\r\n%b\r\n" % (method, path, version, lines)


def test_requests_that_come_together_are_answered_in_order(serve):
    posts = [
        b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%02d" % (n, n) for n in range(20)
    ]

    def client(url, app):
        with connect_to(url) as connection:
            # Given: the first one is not answered before all others have come
            connection.sendall(get(b"/waits") + b"".join(posts[:10]))
            eventually(lambda: app.seen)
            connection.sendall(b"".join(posts[10:]) + get(b"/last", CLOSE) + get(b"/never"))
            app.open()
            return read_to_end(connection)

    # Then
    expected = [b"POST /%d? %02d" % (n, n) for n in range(20)]
    assert bodies(serve(client)) == [b"GET /waits? ", *expected, b"GET /last? "]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/a%20b/%C3%A9?x=%20&y", "/a b/é?x=%20&y"),
        (b"http://host:80/a?b", "/a?b"),
        (b"http://host", "/?"),
        (b"/%ff", "/\ufffd?"),
    ],
)
def test_target_is_decoded(serve, target, expected):
    answer = serve(sent(get(target, CLOSE)))
    assert bodies(answer) == [f"GET {expected} ".encode()]


def test_trailers_are_passed_over(serve):
    def client(url, app):
        body = b"3\r\nabc\r\n0\r\nX-Late: 1\r\n\r\n"
        chunked = get(b"/", b"Transfer-Encoding: chunked\r\n", method=b"POST")
        answer = sent(chunked, body, get(b"/", CLOSE))(url, app)
        return answer, app.seen[0].headers

    answer, headers = serve(client)
    assert bodies(answer) == [b"POST /? abc", b"GET /? "]
    assert "x-late" not in dict(headers)


def test_trailer_without_end_is_not_kept(serve):
    head = get(b"/", b"Transfer-Encoding: chunked\r\n", method=b"POST")

    def client(url, _):
        with connect_to(url) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(head + b"0\r\nX: ")
            for _ in range(200):
                connection.sendall(b"y" * 65536)
            return read_to_end(connection)
        return b""

    assert statuses(serve(client)) in ([500], [])


def test_head_has_neither_body_nor_length(serve):
    answer = serve(sent(get(b"/", method=b"HEAD"), get(b"/", CLOSE)))
    assert bodies(answer) == [b"", b"GET /? "]
    assert answer.count(b"content-length") == 1


@pytest.mark.parametrize("status", [204, 304])
def test_answer_that_has_no_body_does_not_begin_another_one(serve, status):
    answer = serve(sent(get(b"/%d" % status), get(b"/next", CLOSE)))
    assert statuses(answer) == [status, 200]
    assert bodies(answer) == [b"", b"GET /next? "]


def test_requests_are_begun_when_the_answers_before_them_are_taken_in(serve):
    count = 20  # the system's own buffers hold some megabytes

    def client(url, app):
        with connect_to(url) as connection:
            # When the client does not read
            connection.sendall(get(b"/large") * (count - 1) + get(b"/large", CLOSE))
            eventually(lambda: app.seen)
            with connect_to(url) as other:
                for _ in range(count):
                    other.sendall(get(b"/other"))
                    other.recv(1000)
            begun = len(app.seen) - count
            return begun, read_to_end(connection)

    # Then
    begun, answer = serve(client)
    assert begun < count / 2
    assert statuses(answer) == [200] * count
    assert len(answer) > count * LARGE_BYTES


def test_request_that_comes_later_is_begun_when_the_answers_before_it_are_taken_in(serve):
    count = 20

    def client(url, app):
        with connect_to(url) as connection:
            # When the client does not read, and sends each request behind the answer before it
            for number in range(count):
                connection.sendall(get(b"/large"))
                if not came_true(lambda: len(app.answered) > number, 0.5):  # noqa: B023
                    break
            connection.sendall(get(b"/last", CLOSE))
            return number, read_to_end(connection)

    # Then
    begun, answer = serve(client)
    assert begun < count / 2
    assert statuses(answer) == [200] * (begun + 2)


def test_requests_that_wait_for_one_before_them_are_few(serve):
    def client(url, app):
        with connect_to(url) as connection:
            # When: each piece ends within a request, so that there is always one to be read on
            connection.sendall(b"POST /waits HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
            piece = (
                b"x" + get(b"/n") * 400 + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
            )
            with contextlib.suppress(TimeoutError):
                connection.settimeout(0.2)
                for _ in range(400):
                    connection.sendall(piece)
            app.open()
            connection.settimeout(10)
            return read_to_end(connection)

    # Then: the connection ends with the answers to some of them
    answer = serve(client)
    assert set(statuses(answer)) == {200}
    assert len(statuses(answer)) == 257


def test_bodies_of_requests_that_wait_are_not_read_ahead(serve):
    def client(url, app):
        with connect_to(url) as connection:
            # When: as above, with bodies
            connection.sendall(b"POST /waits HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
            head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200001\r\n\r\n"
            sent_bytes = 0
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                for _ in range(200):
                    sent_bytes += connection.send(b"x" + head + bytes(200_000))
            return sent_bytes

    # Then: there are some megabytes in the system's own buffers
    assert serve(client) < 20_000_000


@pytest.mark.parametrize(
    ("lines", "count"), [(b"", 1), (CLOSE, 1), (b"Connection: Keep-Alive\r\n", 2)]
)
def test_http_1_0_closes_unless_asked_not_to(serve, lines, count):
    answer = serve(sent(get(b"/", lines, b"1.0"), get(b"/", CLOSE)))
    assert len(statuses(answer)) == count
    assert answer.count(b"connection: keep-alive") == count - 1


@pytest.mark.parametrize("expectation", [b"100-continue", b"100-Continue"])
def test_client_that_waits_to_continue_is_told_to(serve, expectation):
    def client(url, _):
        with connect_to(url) as connection:
            lines = b"Expect: %b\r\nContent-Length: 3\r\n" % expectation + CLOSE
            connection.sendall(get(b"/", lines, method=b"POST"))
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b"abc")
            return read_to_end(connection)

    assert bodies(serve(client)) == [b"POST /? abc"]


def test_client_whose_body_is_not_wanted_gets_its_answer_all_the_same(serve):
    def client(url, _):
        with connect_to(url) as connection:
            connection.sendall(get(b"/unread", b"Content-Length: 5000000\r\n", method=b"POST"))
            # When: it sends on although it has been answered
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x" * 5_000_000)
            return read_to_end(connection)

    answer = serve(client)
    assert bodies(answer) == [b"POST /unread? "]
    assert b"connection: close" in answer


@pytest.mark.parametrize("path", [b"/raises", b"/forgets", b"/splits"])
def test_request_that_is_not_answered_gets_500(serve, path):
    answer = serve(sent(get(path), get(b"/never")))
    assert statuses(answer) == [500]
    assert b"x-c" not in answer


def test_stream_that_is_not_ended_is_broken_off(serve):
    answer = serve(sent(get(b"/stream"), get(b"/never")))
    assert bodies(answer) == [b"3\r\nabc\r\n"]


@pytest.mark.parametrize(
    "behind", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\xff", b"no HTTP", b"GET \xff"]
)
def test_wish_for_another_protocol_is_passed_over(serve, behind):
    answer = serve(sent(get(b"/", H2C), behind))
    assert bodies(answer) == [b"GET /? "]


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"Content-Length: 6\r\n", b"abcdef"),
        (b"Transfer-Encoding: chunked\r\n", b"6;x=y\r\nabcdef\r\n0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("cut", [0, 2, 6])
def test_body_behind_a_wish_for_another_protocol_is_read(serve, line, body, cut):
    def client(url, app):
        with connect_to(url) as connection:
            connection.sendall(get(b"/", line + H2C, method=b"POST") + body[:cut])
            eventually(lambda: app.seen)
            connection.sendall(body[cut:] + get(b"/next", H2C) + get(b"/last", H2C + CLOSE))
            return read_to_end(connection)

    # Then all are answered on one connection, as Java's HttpClient wishes with each request
    assert bodies(serve(client)) == [b"POST /? abcdef", b"GET /next? ", b"GET /last? "]


@pytest.mark.parametrize("behind", [b"\xc3\xa9", b"}\r\n\r\n"])
def test_client_whose_request_is_whole_is_there_whatever_comes_behind(serve, behind):
    def client(url, app):
        with connect_to(url) as connection:
            # When: its length was counted in characters, not in bytes
            connection.sendall(get(b"/left", b"Content-Length: 3\r\n") + b"abc" + behind)
            eventually(lambda: app.seen)
            app.open()
            return read_to_end(connection)

    # Then
    assert bodies(serve(client)) == [b"GET /left? there"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"GET / HTTP/3.7\r\n\r\n", 400),
        (get(b"/", method=b"FROB"), 405),
        (get(b"/", b"X: y\r\n Z: folded\r\n"), 400),
        (get(b"/", b"X: a\x00b\r\n"), 400),
        (get(b"/", b"Bad Header: x\r\n"), 400),
        (get(b"/", b"Content-Length: 3\r\nContent-Length: 4\r\n"), 400),
        (get(b"/", b"Content-Length: -1\r\n"), 400),
        (get(b"/", b"Content-Length: x\r\n"), 400),
        (get(b"/", b"Transfer-Encoding: \xff, chunked\r\n"), 400),
        (get(b"/" + b"x" * 100_000), 431),
        (get(b"/", MANY_HEADERS), 431),
    ],
)
def test_head_that_cannot_be_read_is_refused_and_told_of(serve, request_bytes, status):
    answer, refused = serve(lambda url, app: (sent(request_bytes)(url, app), app.refused))
    assert statuses(answer) == refused == [status]
    assert b"connection: close" in answer
    assert (b"raise max_header_size" in answer) == (status == 431)


@pytest.mark.parametrize("lines", [MANY_HEADERS, b"X: " + b"y" * 70_000 + b"\r\n"])
@pytest.mark.parametrize("body", [b"", b"abc"])
def test_b15_request_behind_one_with_too_large_a_head_is_not_served(serve, lines, body):
    # Given
    first = get(b"/first", lines + b"Content-Length: %d\r\n" % len(body), method=b"POST") + body
    # When: both come in one read, as far as the system lets them
    client = sent(first, get(b"/second", CLOSE))
    answer, app = serve(lambda url, app: (client(url, app), app))
    # Then
    assert statuses(answer) == app.refused == [431]
    assert b"connection: close" in answer
    assert app.seen == []


def test_client_is_held_up_while_its_body_is_not_read(serve):
    size_bytes = 64 * 1024 * 1024

    def client(url, app):
        with connect_to(url) as connection:
            connection.settimeout(0.5)
            lines = b"Content-Length: %d\r\n" % size_bytes + CLOSE
            connection.sendall(get(b"/late", lines, method=b"POST"))
            sent_bytes = 0
            with contextlib.suppress(TimeoutError):
                while sent_bytes < size_bytes:
                    sent_bytes += connection.send(b"x" * min(65536, size_bytes - sent_bytes))
            # Then: what it could send lies in the kernel, but for a little
            assert sent_bytes < size_bytes / 2
            assert app.seen[0]._size_bytes <= 2 * AHEAD_BYTES
            # When
            app.open()
            connection.settimeout(10)
            connection.sendall(b"x" * (size_bytes - sent_bytes))
            assert statuses(read_to_end(connection)) == [200]
        return app.taken_bytes

    assert serve(client) == size_bytes


def test_drain_closes_idle_connections_and_answers_the_others(serve):
    def client(url, app):
        with connect_to(url) as idle, connect_to(url) as busy:
            # Given
            idle.sendall(get(b"/"))
            assert idle.recv(1000)
            busy.sendall(get(b"/waits"))
            eventually(lambda: len(app.seen) == 2)
            # When
            app.stop()
            # Then
            assert read_to_end(idle) == b""
            app.open()
            answer = read_to_end(busy)
            with pytest.raises(ConnectionRefusedError):
                connect_to(url)
        return answer

    answer = serve(client)
    assert statuses(answer) == [200]
    assert b"connection: close" in answer


@pytest.mark.parametrize("event", ["the client sends no more", "the server drains"])
def test_answer_that_is_about_to_leave_is_sent_whatever_comes(serve, event):
    def client(url, app):
        with connect_to(url) as connection:
            connection.sendall(get(b"/waits/watched"))
            eventually(lambda: app.seen)
            ends = {
                "the client sends no more": lambda: connection.shutdown(socket.SHUT_WR),
                "the server drains": app.listener.stop,
            }
            app.after = ends[event]
            app.open()
            return read_to_end(connection)

    assert bodies(serve(client)) == [b"GET /waits/watched? "]


async def test_second_server_on_a_unix_socket_is_refused(tmp_path):
    path = tmp_path / "ferry.sock"
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(str(path))
        first.listen()
        with pytest.raises(AddressUnavailable, match="cannot listen"):
            await Listener(Address("", 0, path), Application(), error_answer).start()
    # When: the first one is gone, and has left its file
    second = Listener(Address("", 0, path), Application(), error_answer)
    await second.start()
    second.stop()


def test_server_that_can_hardly_open_a_file_says_so(serve, caplog, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    serve(lambda url, app: [sent(get(b"/", CLOSE))(url, app) for _ in range(2)])
    assert caplog.messages == ["hardly a file can be opened limit=20"]
