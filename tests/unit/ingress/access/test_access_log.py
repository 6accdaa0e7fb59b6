"""The outermost layer of a listener: counts, access log, CORS."""

import logging
from dataclasses import replace

import pytest

from batching.settings.settings import Settings
from ingress.access.access_log import AccessLog, answering_preflights, cors_headers
from ingress.http1.exchange import Exchange
from ingress.http1.head import with_added

CORS = replace(
    Settings(),
    cors_allowed_origin="https://page.example",
    cors_allowed_methods="GET, POST",
    cors_allowed_headers="X-Custom-Header",
)


class Wire:
    """The connection's end of an answer."""

    client = "127.0.0.1:5000"

    def __init__(self, log, added_headers):
        self.sent = []
        self.log = log
        self.added_headers = added_headers

    def answer(self, exchange, status, headers, body):
        self.sent.append((status, with_added(headers, self.added_headers), body))
        exchange.status = status
        self.log.on_answered(exchange)


def ask(app, path="/ping", query="", method="GET", headers=(), *, added_headers=(), **options):
    """Has the application answer; returns the counted statuses and what was sent."""
    counted = []
    wire = Wire(AccessLog(counted.append, **options), added_headers)
    exchange = Exchange(
        wire,
        method=method,
        path=path,
        query=query,
        http_version="1.1",
        headers=[*headers],
        fields=dict(headers),
        keeps_alive=True,
    )
    exchange.feed(b"body")
    exchange.receive()
    app(exchange)
    return counted, wire


def echo(exchange):
    exchange.respond(200, [("a", "b")], exchange.received())


def test_answer_is_counted_and_otherwise_as_it_was():
    counted, wire = ask(echo)
    assert counted == [200]
    assert wire.sent == [(200, [("a", "b")], b"body")]


def test_answer_gets_the_cors_headers_when_all_three_are_configured():
    _, wire = ask(echo, added_headers=cors_headers(CORS))
    assert wire.sent[0][1] == [
        ("a", "b"),
        ("access-control-allow-origin", "https://page.example"),
        ("access-control-allow-methods", "GET, POST"),
        ("access-control-allow-headers", "X-Custom-Header"),
    ]


def test_cors_headers_stand_in_place_of_those_of_a_handler():
    def handler_that_allows_itself(exchange):
        exchange.respond(200, [("Access-Control-Allow-Origin", "*"), ("Vary", "Origin")], b"")

    _, wire = ask(handler_that_allows_itself, added_headers=cors_headers(CORS))
    assert wire.sent[0][1] == [("Vary", "Origin"), *cors_headers(CORS)]


PREFLIGHT = ("access-control-request-method", "POST")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("OPTIONS", [PREFLIGHT], 204),
        ("OPTIONS", [PREFLIGHT, ("authorization", "Bearer key")], 200),
        ("OPTIONS", [], 200),
        ("POST", [PREFLIGHT], 200),
    ],
)
def test_preflight_without_a_key_needs_none_and_learns_nothing(method, headers, status):
    asked = ("/predictions/m", "", method, headers)
    counted, wire = ask(answering_preflights(echo), *asked, added_headers=cors_headers(CORS))
    assert counted == [status]
    assert wire.sent[0][2] == (b"" if status == 204 else b"body")
    assert wire.sent[0][1][-3:] == cors_headers(CORS)
    assert ask(echo, *asked)[0] == [200]


@pytest.mark.parametrize("missing", ["origin", "methods", "headers"])
def test_answer_gets_no_cors_headers_when_one_is_missing(missing):
    assert cors_headers(replace(CORS, **{f"cors_allowed_{missing}": ""})) == []


def test_access_log_has_torchserves_form(caplog):
    # When
    with caplog.at_level(logging.INFO, "ACCESS_LOG"):
        ask(echo, "/models", "url=a.mar", "POST", is_logging=True)
    # Then
    [record] = caplog.records
    assert record.getMessage() == '/127.0.0.1:5000 "POST /models?url=a.mar HTTP/1.1" 200 0'


def test_access_log_has_one_line_whatever_the_path_says(caplog):
    # Given a path that was sent as /x%0A2026... and came decoded
    with caplog.at_level(logging.INFO, "ACCESS_LOG"):
        ask(echo, '/x\n2026-01-01 INFO ACCESS_LOG "forged"\x1b[31m', is_logging=True)
    # Then
    text = caplog.records[0].getMessage()
    assert text.isprintable()
    assert text.count('"') == 2


def test_what_was_no_request_is_counted_and_logged_without_its_words(caplog):
    counted = []
    # When
    with caplog.at_level(logging.INFO, "ACCESS_LOG"):
        AccessLog(counted.append).on_refused("10.0.0.1:5000", 400)
        AccessLog(counted.append, is_logging=True).on_refused("10.0.0.1:5000", 431)
    # Then
    assert counted == [400, 431]
    [record] = caplog.records
    assert record.getMessage() == '/10.0.0.1:5000 "-" 431 0'
