"""Bytes in, bytes out: for requests that no HTTP library would send."""

import asyncio
import contextlib
import copy
import re
import socket
import sys
import threading
from dataclasses import replace

import uvloop

from ingress.http1.listener import Address, Listener
from ingress.models.registrar import Registrar
from ingress.models.startup_models import StartupLoader
from ingress.predictions.prediction import HttpPredictions, Prediction
from ingress.rest.wsgi_bridge import AwaitedExchange
from ingress.role import Role
from ingress.server import application
from ingress.torchserve.answers import error_answer
from tests.ports import free_ports

TIMEOUT_S = 10


def connect_to(url):
    """A connection to a listener's address."""
    port = int(url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)


@contextlib.asynccontextmanager
async def listener(app, address=None, **options):
    """A listener for this application, by default on a port of its own."""
    started = Listener(address or Address("127.0.0.1", free_ports(1)), app, error_answer, **options)
    await started.start()
    try:
        yield started
    finally:
        started.stop()
        await asyncio.wait_for(started.wait_closed(), TIMEOUT_S)


def served(app, client, *, tls=None, **options):
    """Runs a blocking `client(port)` beside a listener for this application; returns its result."""

    async def main():
        address = Address("127.0.0.1", free_ports(1), is_tls=tls is not None)
        async with listener(app, address, tls=tls and tls.context, **options):
            return await asyncio.to_thread(client, address.port)

    return uvloop.run(main())  # as the ingress does


@contextlib.contextmanager
def loop_in_thread():
    """An event loop like that of an ingress, and a function that runs a coroutine on it."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop, lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def listening_on(call, app, address=None, **options):
    """Yields the address of a listener on the loop of `call`, from `loop_in_thread`."""
    running = listener(app, address, **options)
    started = call(running.__aenter__())
    try:
        yield str(started.address)
    finally:
        call(running.__aexit__(None, None, None))


def changed(services, **parts):
    """The same parts of an ingress, but for these."""
    copied = copy.copy(services)
    vars(copied).update(parts)
    return copied


def with_settings(services, settings):
    """The same parts with other settings of predictions."""
    predictions = HttpPredictions(services.predictor, services.jobs, settings)
    return changed(services, http_predictions=predictions, settings=settings)


def awaited(services, target, headers, body):
    """The answer to a prediction at Flask's door."""
    exchange = AwaitedExchange(headers)
    prediction = Prediction(services.http_predictions, target, exchange)
    services.loop.call_soon_threadsafe(prediction.submit, body)
    return exchange.answered.result(20)


def load(ingress, *, is_awaited=False, **settings):
    """Starts an ingress with these settings; returns what failed."""
    services = changed(ingress.services, settings=replace(ingress.services.settings, **settings))
    return StartupLoader(services, Registrar(services), is_awaited=is_awaited).load()


@contextlib.contextmanager
def listening(echo, address, tls=None, settings=None):
    """The inference port of this ingress on another address, too."""
    settings = replace(settings or echo.services.settings, max_response_size_bytes=20)
    services = with_settings(echo.services, settings)
    app = application(services, frozenset({Role.INFERENCE}))
    with listening_on(services.on_loop, app, address, tls=tls, settings=settings):
        yield


def read_to_end(connection):
    """Returns the bytes that come until the other side closes."""
    chunks = []
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def exchange(url, data):
    """Sends these bytes; returns the answer until the server closes."""
    with connect_to(url) as connection:
        # A server that has refused already need not take the rest.
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        answer = read_to_end(connection)
    for part in answer.split(b"HTTP/1.1 ")[1:]:
        if part[:1] in b"45":
            assert_tells_nothing(part.decode("latin-1"))
    return answer


def statuses(answer):
    """Returns the status of each response in the bytes."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def post(path, *lines, body=b""):
    """Returns the bytes of a POST with these header lines."""
    head = [f"POST {path} HTTP/1.1".encode(), b"Host: x", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


# --- B14: what an error must never tell

_SECRETS = [
    r"Traceback",
    r"\.py\b",
    r'File "',
    r"\bline \d+",
    r"object at 0x",
    r"/(?:tmp|home|root|work|usr|proc|etc|var)/",
    r"(?:redis|unix|rediss)://",
    r"\{model2:",
    r"\{m:",
    r"\{ferry\}",
    r"rq:",
    r"(?i:httptools|llhttp|werkzeug|flask|hiredis|uvloop|redis-py)",
    re.escape(sys.version.split()[0]),
    re.escape(socket.gethostname()),
]
SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in _SECRETS))


def assert_tells_nothing(text, asked=""):
    """Checks that the text has no path, traceback, key, host or version but those in `asked`."""
    found = SECRET.search(text)
    while found is not None:
        assert found[0] in asked, f"an error tells {found[0]!r}: {text!r}"
        found = SECRET.search(text, found.end())
