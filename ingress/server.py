"""Runs the ingress process: builds everything, serves until it is told to stop, and drains.

The order of stopping, and why: readiness turns false (load balancers look elsewhere) → listeners
close (no new request can be lost) → requests in flight are answered → the broker closes (clients
that still wait are refused, not left hanging) → connections to Redis close.
"""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import uvloop

from batching.errors import Draining, StoreUnavailable
from batching.process.daemon_thread import in_daemon_thread
from batching.process.part import Launch, StopEvents, launch, notify_ready
from batching.process.siblings import Siblings
from batching.settings.settings import Settings
from batching.store.background_tasks import keep_going
from batching.store.server_check import check_server
from ingress.access.certificate import Certificate, certificate_of
from ingress.access.tokens import Authorizer, open_keys
from ingress.http1.exchange import Application, Exchange, Header
from ingress.http1.listener import Address, Listener, NoteAnswer
from ingress.models.registrar import Registrar
from ingress.models.startup_models import SnapshotWriter, StartupLoader
from ingress.predictions.prediction import InferenceRouter
from ingress.rest.app import create_app
from ingress.rest.wsgi_bridge import WsgiBridge
from ingress.role import Role, listener_table
from ingress.services import Services
from ingress.torchserve.answers import error_answer

log = logging.getLogger(__name__)

# The names by which operators of TorchServe find these lines.
access_log = logging.getLogger("ACCESS_LOG")

# A prediction has its handler's content type, or none. A browser that guesses the type would run
# HTML that a handler echoes.
NO_GUESSING: Header = ("x-content-type-options", "nosniff")

# A drain waits for the last snapshot, but not for a Redis that is away.
_SNAPSHOT_S = 1.0

# After the broker has refused the requests that still wait, their answers have this long to leave.
_REFUSAL_S = 0.5

_GC_THRESHOLD = 20_000

_EXIT_FORCED = 1


def run(settings: Settings) -> int:
    """Serves until SIGTERM, SIGINT or its terminal's end; returns the exit code.

    0; 1 if a second signal ended the drain.

    Raises:
        UnusableNow: an address is in use, or nodes of another release are running.
        SettingsError: no start with these settings can succeed.
    """
    table = listener_table(settings)
    certificate = certificate_of(settings)
    check_server(settings)
    if certificate is not None:
        certificate.open()

    async def serve() -> int:
        loop, siblings = asyncio.get_running_loop(), Siblings.from_environment()
        services = Services(settings, open_keys(settings), loop, siblings)
        return await _Ingress(services, certificate).serve(table)

    return uvloop.run(serve())


class _Ingress:
    def __init__(self, services: Services, certificate: Certificate | None) -> None:
        self._services = services
        self._settings = settings = services.settings
        self._certificate = certificate
        self._launch = launch()
        # A later launch loads nothing: the models of the first one, and changes to them, are in
        # Redis.
        is_told_to_load = bool(settings.load_models or settings.snapshot_file)
        may_load = self._launch is not Launch.AGAIN and services.siblings.is_first
        self._has_to_load = is_told_to_load and may_load
        self._snapshots: SnapshotWriter | None = None
        if settings.snapshot_dir is not None and services.siblings.is_first:
            self._snapshots = SnapshotWriter(services.registry, settings, settings.snapshot_dir)
        self._signals = StopEvents()

    async def serve(self, table: dict[Address, frozenset[Role]]) -> int:
        services = self._services
        self._signals.listen()
        if self._has_to_load:  # known before the ports open
            services.lifecycle.is_loading = await asyncio.to_thread(self._lacks_models)
        await services.start()
        # A unix socket has one listener.
        listeners = [
            self._listener(address, roles)
            for address, roles in table.items()
            if address.socket_path is None or services.siblings.is_first
        ]
        tasks: list[asyncio.Task[None]] = []
        try:
            for listener in listeners:
                await listener.start()
                names = ",".join(sorted(table[listener.address]))
                log.info("listening address=%s roles=%s", listener.address, names)
            # What exists by now stays for good. Looking through it every few hundred requests took
            # 3 % of the time, and requests make hardly any cycles.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GC_THRESHOLD)
            tasks += [asyncio.create_task(self._load_models())]
            if self._certificate is not None:
                follow = keep_going(self._certificate.follow, "of the certificate")
                tasks += [asyncio.create_task(follow)]
            await self._signals.stop.wait()
            return await self._drain(listeners)
        finally:
            for task in tasks:
                task.cancel()
            await services.close()

    def _listener(self, address: Address, roles: frozenset[Role]) -> Listener:
        services, settings = self._services, self._settings
        app = application(services, roles, is_private=address.is_private)
        if services.keys is not None and cors_headers(settings):
            # Flask answers OPTIONS with a document, which needs a key when tokens are on.
            app = answering_preflights(app)
        note = services.metrics.note_answer
        return Listener(
            address,
            app,
            error_answer,
            note_answer=logged(note) if settings.access_log else note,
            added_headers=[NO_GUESSING, *cors_headers(settings)],
            settings=settings,
            tls=None if self._certificate is None else self._certificate.context,
            shares_port=services.siblings.count > 1,
        )

    def _lacks_models(self) -> bool:
        with contextlib.suppress(StoreUnavailable):
            return not self._services.probe_registry.snapshot()
        return True

    async def _load_models(self) -> None:
        failures: list[dict[str, str]] = []
        try:
            if self._has_to_load:
                services, is_awaited = self._services, self._launch is Launch.AWAITED
                loader = StartupLoader(services, Registrar(services), is_awaited=is_awaited)
                failures = await in_daemon_thread(loader.load)
        finally:
            self._services.lifecycle.is_loading = False
        # An ingress that is told to stop meanwhile may have registered only some of the models.
        if self._snapshots is not None and not self._services.lifecycle.is_draining:
            # A later launch cannot know whether the whole snapshot was restored.
            is_known = self._launch is not Launch.AGAIN
            is_whole = self._settings.snapshot_file is None or (is_known and not failures)
            await in_daemon_thread(partial(self._snapshots.start, is_whole=is_whole))
        notify_ready(failures)

    async def _drain(self, listeners: list[Listener]) -> int:
        services, settings = self._services, self._settings
        log.info("draining open=%d", services.broker.waiting)
        services.lifecycle.is_draining = True
        forced: asyncio.Future[Any] = asyncio.create_task(self._signals.hurry.wait())
        # Load balancers look elsewhere once readiness is false, but not at once.
        await asyncio.wait({forced}, timeout=settings.drain_delay_s)
        for listener in listeners:
            listener.stop()
        ends_s = services.loop.time() + settings.drain_timeout_s
        closed: asyncio.Future[Any]
        closed = asyncio.gather(*(listener.wait_closed() for listener in listeners))
        try:
            await asyncio.wait(
                {closed, forced},
                timeout=max(0.0, settings.drain_timeout_s - _REFUSAL_S),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not closed.done():
                await self._refuse_open(listeners)
                await asyncio.wait({closed}, timeout=_REFUSAL_S)
        finally:
            forced.cancel()
            closed.cancel()
        if self._snapshots is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_s):
                    await services.siblings.gone()  # a sibling may still register a model
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(in_daemon_thread(self._snapshots.close), _SNAPSHOT_S)
        log.info("stopped")
        return _EXIT_FORCED if self._signals.hurry.is_set() else 0

    async def _refuse_open(self, listeners: list[Listener]) -> None:
        connections = [client for listener in listeners for client in listener.connections]
        if waiting := self._services.broker.waiting:
            log.warning("refusing open=%d", waiting)
        else:
            # No request is open: these clients send or read too slowly, or not at all.
            log.warning("cutting off clients=%d", len(connections))
        await self._services.broker.close()
        error = Draining("The server is shutting down.", retry_after_s=1.0)
        for connection in connections:
            connection.refuse_incomplete(error)


def application(
    services: Services, roles: frozenset[Role], *, is_private: bool = False
) -> Application:
    """Returns the application of a listener; the arguments are as for `create_app`."""
    settings, authorizer = services.settings, Authorizer(services.keys, roles)
    app = create_app(services, roles, is_private=is_private)
    bridge = WsgiBridge(app, settings, authorizer)
    if Role.INFERENCE not in roles:
        return bridge
    services.predictor.tells_errors = is_private or settings.show_tracebacks
    return InferenceRouter(services.http_predictions, bridge, authorizer)


# --- what goes with every answer. Source: TorchServe 0.12 `NettyUtils.sendHttpResponse`,
# `HttpRequestHandler`.


def cors_headers(settings: Settings) -> list[Header]:
    """Returns the three headers, if all three are configured, as in TorchServe."""
    headers = [
        ("access-control-allow-origin", settings.cors_allowed_origin),
        ("access-control-allow-methods", settings.cors_allowed_methods),
        ("access-control-allow-headers", settings.cors_allowed_headers),
    ]
    return headers if all(value for _, value in headers) else []


def logged(note: NoteAnswer) -> NoteAnswer:
    def note_and_log(status: int, client: str, exchange: Exchange | None) -> None:
        note(status, client, exchange)
        if exchange is None:  # the connection has made the answer by itself
            access_log.info('/%s "-" %d 0', client, status)
            return
        milliseconds = (time.perf_counter() - exchange.started_s) * 1000
        # The path comes percent-decoded, line breaks included. It is quoted again, or a client
        # could write lines of its own into the log.
        target = quote(exchange.path, safe="/:@!$&'()*+,;=~-._")
        target += f"?{exchange.query}" if exchange.query else ""
        line = f'/{client} "{exchange.method} {target} HTTP/{exchange.http_version}"'
        access_log.info("%s %d %d", line, status, milliseconds)

    return note_and_log


def answering_preflights(app: Application) -> Application:
    """Returns the application with preflight requests of browsers answered, without a key.

    Browsers send none with them. Source: Fetch, "CORS-preflight fetch".
    """

    def answer(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        fields = exchange.fields
        is_preflight = exchange.method == "OPTIONS" and "access-control-request-method" in fields
        if not is_preflight or "authorization" in fields:
            return app(exchange)
        exchange.respond(HTTPStatus.NO_CONTENT, [], b"")
        return None

    return answer
