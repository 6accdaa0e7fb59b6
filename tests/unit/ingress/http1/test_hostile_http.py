"""B1, B2, B5 and B15: bytes that no HTTP library sends, on both doors.

`/predictions` goes through the router, the rest through the bridge.
"""

import contextlib
import gzip

import psutil
import pytest

from ingress.http1.heads import MAX_AROUND_BYTES
from tests.unit.ingress.sockets import connect_to, exchange, post, read_to_end, statuses

pytestmark = pytest.mark.slow  # whole servers on real sockets

LIMIT = 100_000  # max_request_size of the ingress fixture
CHUNKED = b"Transfer-Encoding: chunked"
JSON = b"Content-Type: application/json"
SECOND = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(params=["/predictions/echo", "/models"])
def door(request, ingress, node):
    """Address and path of a route that reads a body: the router's, and one behind the bridge."""
    ingress.register("echo")
    is_prediction = request.param.startswith("/predictions")
    return (ingress.inference_url if is_prediction else ingress.management_url), request.param


def assert_was_read(answer, path, body):
    """Checks that the handler has the body, or that the management route missed a URL in it."""
    is_prediction = path.startswith("/predictions")
    assert statuses(answer) == [200 if is_prediction else 400]
    assert (b"body:|" + body if is_prediction else b"Parameter url is required.") in answer


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


# --- B1


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([b"Content-Length: %d" % (LIMIT + 1)], b""),
        ([b"Expect: 100-continue", b"Content-Length: %d" % (LIMIT + 1)], b""),
        ([CHUNKED], b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, b"x" * (LIMIT + 1))),
    ],
    ids=["announced", "asked first", "in chunks"],
)
def test_b01_body_over_the_limit_is_refused(door, lines, body):
    url, path = door
    assert exchange(url, post(path, *lines, body=body)).startswith(b"HTTP/1.1 413 ")


def test_b01_chunked_body_without_end_is_refused_and_not_kept(door):
    url, path = door
    piece = chunk(b"x" * 0x40000)
    started_bytes = psutil.Process().memory_info().rss
    # When: 50 MB, five hundred times the limit, in a body that does not end
    with connect_to(url) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(post(path, CHUNKED))
            for _ in range(200):
                connection.sendall(piece)
        answer = read_to_end(connection)
    # Then
    assert statuses(answer) in ([413], [])  # it may have hung up on us while we were sending
    assert psutil.Process().memory_info().rss - started_bytes < 6_553_500  # one body of the default


def test_b01_length_after_thousands_of_zeros_is_a_length(door):
    url, path = door
    line = b"Content-Length: " + b"0" * 5000 + b"5"
    data = post(path, line, b"Connection: close", body=b"12345")
    assert_was_read(exchange(url, data), path, b"12345")


def test_b01_body_of_exactly_the_limit_is_read(door):
    url, path = door
    for data in (
        post(path, b"Content-Length: %d" % LIMIT, b"Connection: close", body=b"x" * LIMIT),
        post(path, CHUNKED, b"Connection: close", body=chunk(b"x" * LIMIT) + b"0\r\n\r\n"),
    ):
        assert_was_read(exchange(url, data), path, b"x" * LIMIT)


# --- B2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_b02_length_beside_chunks_ends_the_connection(door, order):
    # Given: by its chunks the body ends at once, by its length the next request belongs to it
    url, path = door
    lines = [b"Content-Length: %d" % (5 + len(SECOND)), CHUNKED]
    data = post(path, *(lines[place] for place in order), body=b"0\r\n\r\n" + SECOND)
    # When
    answer = exchange(url, data)
    # Then there is one answer, and no keep-alive on which a proxy could be out of step
    assert len(statuses(answer)) == 1
    assert b"connection: close" in answer


@pytest.mark.parametrize("body", [b"0\r\n\r\n", chunk(b"tabby") + b"0\r\n\r\n"])
def test_b02_chunks_in_http_1_0_end_the_connection(door, body):
    # Given: HTTP/1.0 knows no chunks, so that a proxy may see another end of the body
    url, path = door
    first = post(path, CHUNKED, b"Connection: keep-alive", body=body)
    second = SECOND.replace(b"Host: x", b"Host: x\r\nConnection: close")
    # When
    answer = exchange(url, first.replace(b"HTTP/1.1", b"HTTP/1.0") + second)
    # Then
    assert statuses(answer) == [400]
    assert b"connection: close" in answer


def test_b02_request_behind_a_chunked_one_is_one_of_its_own(ingress, node):
    ingress.register("echo")
    last = SECOND.replace(b"Host: x", b"Host: x\r\nConnection: close")
    sent = post("/predictions/echo", CHUNKED, body=chunk(b"tabby") + b"0\r\n\r\n" + last)
    answer = exchange(ingress.inference_url, sent)
    assert statuses(answer) == [200, 200]
    assert b"\r\n\r\nbody:|tabbyHTTP/1.1 200" in answer


def test_b02_pipelined_requests_without_chunks_are_all_served(ingress):
    last = SECOND.replace(b"Host: x", b"Host: x\r\nConnection: close")
    assert statuses(exchange(ingress.inference_url, SECOND * 2 + last)) == [200] * 3


BROKEN_CHUNKS = [
    b"zz\r\nabc\r\n0\r\n\r\n",
    b"-1\r\nabc\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    b"3\r\nabcdef\r\n0\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("first", [b"", chunk(b"tab")])
def test_b02_broken_chunk_makes_a_bad_request_and_no_shorter_body(door, first):
    url, path = door
    for rest in BROKEN_CHUNKS:
        answer = exchange(url, post(path, CHUNKED, JSON, body=first + rest))
        assert statuses(answer) == [400], rest


@pytest.mark.parametrize("sent", [chunk(b"tabby"), chunk(b"tab") + b"5\r\nby"])
def test_b02_body_that_breaks_off_is_a_bad_request(door, sent):
    url, path = door
    with connect_to(url) as connection:
        connection.sendall(post(path, CHUNKED, JSON, body=sent))
        connection.shutdown(1)
        assert statuses(read_to_end(connection)) == [400]


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
    ],
)
def test_b02_other_transfer_encodings_are_refused(door, line):
    url, path = door
    answer = exchange(url, post(path, line, b"Connection: close", body=b"0\r\n\r\n"))
    assert statuses(answer) == [400]


def test_b02_absurdly_many_chunks_are_refused(door):
    url, path = door
    piece = b"1;%b\r\nx\r\n" % (b"x" * 20)
    count = 2 * MAX_AROUND_BYTES // len(piece)
    answer = exchange(url, post(path, CHUNKED, body=piece * count))
    assert statuses(answer) in ([400], [])


# --- B2: the host


@pytest.mark.parametrize("hosts", [b"", b"Host: x\r\nHost: x\r\n", b"Host: x\r\nhost: y\r\n"])
def test_b02_request_that_does_not_name_one_host_is_refused(door, hosts):
    # Given: with two, a proxy may have gone by the other one
    url, path = door
    first = post(path, b"Content-Length: 5", body=b"tabby").replace(b"Host: x\r\n", hosts)
    # When
    known = SECOND.replace(b"/livez", b"/livez" if path.startswith("/predictions") else b"/models")
    answer = exchange(url, known + first + known)
    # Then the text says what to do, and the connection ends before what follows
    assert statuses(answer) == [200, 400]
    assert b"connection: close" in answer
    assert b"Send one Host header with each request" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [(b"HEAD /livez HTTP/1.1\r\n\r\n", 400), (b"GET /livez HTTP/1.0\r\n\r\n", 200)],
)
def test_b02_host_is_not_asked_of_http_1_0_and_a_refused_head_has_no_body(
    ingress, request_bytes, status
):
    answer = exchange(ingress.inference_url, request_bytes)
    assert statuses(answer) == [status]
    assert answer.endswith(b"\r\n\r\n") == (status == 400)


# --- B5


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"zstd", b"GZIP, gzip", b"x"])
def test_b05_packed_body_is_refused_unread(door, encoding):
    url, path = door
    bomb = gzip.compress(b"0" * 1_000_000)
    lines = (b"Content-Encoding: " + encoding, b"Content-Length: %d" % len(bomb))
    answer = exchange(url, post(path, *lines, body=bomb))
    assert statuses(answer) == [415]
    assert b"x-ferry-reason: unsupported_encoding" in answer


@pytest.mark.parametrize("headers", [{"Content-Encoding": "identity"}, {}])
def test_b05_body_that_says_nothing_of_packing_is_passed_on_as_it_is(echo, headers):
    # Given
    packed = gzip.compress(b"tabby")
    # When / Then: bytes of an unknown kind are the handler's business
    answer = echo.predict("/predictions/echo", data=packed, headers=headers)
    assert answer.content == b"body:|" + packed


# --- B15


@pytest.mark.parametrize(
    "lines",
    [
        (b"X-Request-Id: a\r\n\r\nInjected: b",),
        (b"X-Request-Id: a\rInjected: b",),
        (b"X-Request-Id: a\nInjected: b",),
        (b"X-Request-Id: a\x00b",),
        (b"X-Request-Id : a",),
        (b" X-Request-Id: folded",),
        (b"X: " + b"a" * 1_000_000,),
        tuple(b"H%d: x" % number for number in range(10_000)),
    ],
)
def test_b15_header_tricks_are_refused_or_harmless_and_never_echoed(door, lines):
    url, path = door
    answer = exchange(url, post(path, *lines, b"Content-Length: 0", b"Connection: close"))
    assert b"njected" not in answer
    assert {*statuses(answer)} <= {200, 400, 431}


def test_b15_percent_encoded_line_ends_in_the_path_are_not_echoed_as_header(door):
    url, path = door
    target = f"{path}%0d%0aInjected:%20b?x=%0d%0aInjected:%20c"
    answer = exchange(url, post(target, b"Content-Length: 0", b"Connection: close"))
    head = answer.partition(b"\r\n\r\n")[0]
    assert b"njected" not in head
