"""The outermost layer of a listener: counts, access log, CORS, all on a real connection."""

import logging
from dataclasses import replace

import pytest

from batching.settings.settings import Settings
from ingress.server import answering_preflights, cors_headers, logged
from tests.unit.ingress.sockets import exchange, served, statuses

CORS = replace(
    Settings(),
    cors_allowed_origin="https://page.example",
    cors_allowed_methods="GET, POST",
    cors_allowed_headers="X-Custom-Header",
)
ALLOWED = b"""access-control-allow-origin: https://page.example\r
access-control-allow-methods: GET, POST\r
access-control-allow-headers: X-Custom-Header\r
"""


def ask(app, request=b"GET /ping HTTP/1.1", headers=(), *, added_headers=(), is_logging=False):
    """Has the application answer; returns the counted statuses and the answer."""
    counted = []

    def count(status, *_):
        counted.append(status)

    noted = logged(count) if is_logging else count
    lines = [request, b"Host: x", b"Connection: close", *headers]
    data = b"\r\n".join(lines) + b"\r\n\r\n"

    def client(port):
        return exchange(f"http://127.0.0.1:{port}", data)

    return counted, served(app, client, note_answer=noted, added_headers=added_headers)


def echo(exchange):
    exchange.respond(200, [("a", "b")], exchange.received())


def test_answer_gets_the_cors_headers_when_all_three_are_configured():
    counted, answer = ask(echo, added_headers=cors_headers(CORS))
    assert counted == [200]
    assert b"\r\na: b\r\n" + ALLOWED in answer


def test_cors_headers_stand_in_place_of_those_of_a_handler():
    def handler_that_allows_itself(exchange):
        exchange.respond(200, [("Access-Control-Allow-Origin", "*"), ("Vary", "Origin")], b"")

    _, answer = ask(handler_that_allows_itself, added_headers=cors_headers(CORS))
    assert b"Vary: Origin\r\n" + ALLOWED in answer
    assert answer.lower().count(b"access-control-allow-origin") == 1


@pytest.mark.parametrize("missing", ["origin", "methods", "headers"])
def test_answer_gets_no_cors_headers_when_one_is_missing(missing):
    assert cors_headers(replace(CORS, **{f"cors_allowed_{missing}": ""})) == []


PREFLIGHT = b"Access-Control-Request-Method: POST"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        (b"OPTIONS", [PREFLIGHT], 204),
        (b"OPTIONS", [PREFLIGHT, b"Authorization: Bearer key"], 200),
        (b"OPTIONS", [], 200),
        (b"POST", [PREFLIGHT], 200),
    ],
)
def test_preflight_without_a_key_needs_none_and_learns_nothing(method, headers, status):
    counted, answer = ask(answering_preflights(echo), method + b" /m HTTP/1.1", headers)
    assert counted == statuses(answer) == [status]
    assert (b"\r\na: b\r\n" in answer) == (status == 200)


@pytest.mark.parametrize(
    ("request_line", "line"),
    [
        (b"POST /models?url=a.mar HTTP/1.1", '"POST /models?url=a.mar HTTP/1.1" 200'),
        # It comes decoded, and would end the line.
        (b"GET /x%0A%22forged%22 HTTP/1.1", '"GET /x%0A%22forged%22 HTTP/1.1" 200'),
        (b"no request", '"-" 400'),
    ],
)
def test_access_log_has_torchserves_form(caplog, request_line, line):
    # When
    with caplog.at_level(logging.INFO, "ACCESS_LOG"):
        ask(echo, request_line, is_logging=True)
    # Then
    [record] = [one for one in caplog.records if one.name == "ACCESS_LOG"]
    client, _, rest = record.getMessage().partition(" ")
    assert client.startswith("/127.0.0.1:")
    answered, _, milliseconds = rest.rpartition(" ")
    assert answered == line
    assert 0 <= int(milliseconds) < 10_000
