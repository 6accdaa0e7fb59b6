"""A head that has come before is read as the parser would read it again."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.http1.known_heads import MAX_HEADS, KnownHeads
from ingress.http1.request_parser import RequestParser, Unreadable

POST = b"POST /predictions/m HTTP/1.1\r\nHost: a\r\n"
PLAIN = POST + b"Content-Length: 3\r\n\r\nabc"
REQUESTS = [
    PLAIN,
    POST + b"Content-Length: 03\r\n\r\nabc",
    POST + b"Content-Length: 0\r\n\r\n",
    POST + b"content-length:3 \r\nX-A: \xc3\xa4\r\nx-a: \xff\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nAuthorization: Bearer x\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /predictions/m?a=b%20c HTTP/1.1\r\n\r\n",
    b"GET /%2F HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"BREW / HTTP/1.1\r\n\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"abc",
]


class Forgetful(KnownHeads):
    """The parser reads every head."""

    def learn(self, data, head):
        pass


class Wire:
    """A connection that takes whatever comes."""

    def take_no_more(self):
        pass


def read(pieces, known_heads):
    """The requests in these pieces, with their bodies, and the status of a refusal."""
    exchanges, refusal = [], None
    parser = RequestParser(Wire(), exchanges.append, known_heads)
    for piece in pieces:
        try:
            if not parser.feed(piece) or not all(one.keeps_alive for one in exchanges):
                break  # a connection feeds nothing more
        except Unreadable as error:
            refusal = error.answer.status
            break
    fields = ("method", "path", "query", "http_version", "keeps_alive", "is_received")
    requests = [
        (*(getattr(one, name) for name in fields), list(one.headers), one.received())
        for one in exchanges
    ]
    return requests, refusal


@settings(max_examples=300, deadline=None)
@given(
    before=st.lists(st.sampled_from(REQUESTS), max_size=4),
    asked=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=3),
)
def test_requests_are_read_as_if_none_had_come_before(before, asked, cuts):
    # Given heads that came by other connections, and what was sent by this one in pieces
    known_heads = KnownHeads()
    for request in before:
        read([request], known_heads)
    # When
    sent = b"".join(asked)
    places = sorted({0, *(cut for cut in cuts if cut < len(sent)), len(sent)})
    pieces = [sent[start:end] for start, end in pairwise(places)]
    for case in (asked, pieces):
        # Then
        assert read(case, known_heads) == read(case, Forgetful())


def test_head_is_known_when_it_comes_again():
    known_heads = KnownHeads()
    read([PLAIN], known_heads)
    known = known_heads.find(PLAIN[:-3] + b"xyz")
    assert known.head.path == "/predictions/m"
    assert PLAIN[known.head_bytes :] == b"abc"


@pytest.mark.parametrize("data", [PLAIN[:-1], PLAIN + b"G", PLAIN + PLAIN, b"", b"\r\n\r\n"])
def test_only_one_whole_request_has_a_known_head(data):
    known_heads = KnownHeads()
    read([PLAIN], known_heads)
    assert known_heads.find(data) is None


@pytest.mark.parametrize("name", [b"Authorization", b"Cookie", b"Proxy-Authorization"])
def test_nobodys_secrets_are_kept(name):
    known_heads = KnownHeads()
    request = b"GET / HTTP/1.1\r\n%b: x\r\n\r\n" % name
    read([request], known_heads)
    assert known_heads.find(request) is None


def test_second_request_of_one_read_is_not_taken_for_the_first():
    known_heads = KnownHeads()
    other = b"GET /other HTTP/1.1\r\n\r\n"
    read([PLAIN + other], known_heads)
    assert known_heads.find(PLAIN).head.path == "/predictions/m"
    assert known_heads.find(other) is None


def test_heads_that_are_never_the_same_are_few():
    known_heads = KnownHeads()
    requests = [b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(3 * MAX_HEADS)]
    for request in requests:
        read([request], known_heads)
    assert sum(known_heads.find(request) is not None for request in requests) <= MAX_HEADS
