"""Runs the ingress in a WSGI server: `gunicorn ingress.wsgi:app`, `flask --app ingress.wsgi run`.

Settings come from `FERRY_...` variables and `REDIS_URL`; the server decides where it listens. One
address serves predictions and, unless `enable_metrics_api` is off, metrics. It serves management
only where that is safe: with tokens, or with `FERRY_ALLOW_OPEN_MANAGEMENT=true`. `ferry up` and
`ferry ingress` are faster: there, a waiting prediction costs no thread.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask

from batching.process.logs import configure_logging
from batching.settings.loading import load_settings
from batching.settings.settings import SettingsError
from batching.store.server_check import check_server
from ingress.access.tokens import open_keys
from ingress.rest.app import create_app as create_rest_app
from ingress.role import Role
from ingress.services import Services

_CLOSE_S = 2.0


def create_app() -> Flask:
    """Builds the Flask application in this process; not to be called before a fork.

    Raises:
        SettingsError: a setting is wrong, or no Redis is named.
    """
    settings, _ = load_settings()
    if not settings.redis_url:
        raise SettingsError("no Redis is named: set FERRY_REDIS_URL or REDIS_URL")
    configure_logging(settings.log_level)
    check_server(settings)
    if settings.page == "loopback":
        # The WSGI server chooses the address, which is not known here.
        settings = replace(settings, page="off")
    loop = asyncio.new_event_loop()
    services = Services(settings, open_keys(settings), loop)
    threading.Thread(target=loop.run_forever, name="predictions", daemon=True).start()
    services.on_loop(services.start())

    @atexit.register
    def close() -> None:
        closing = asyncio.run_coroutine_threadsafe(services.close(), loop)
        closing.exception(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)

    has_management = services.keys is not None or settings.allow_open_management
    is_served = {Role.METRICS: settings.enable_metrics_api, Role.MANAGEMENT: has_management}
    return create_rest_app(services, [role for role in Role if is_served.get(role, True)])


_lock = threading.Lock()


@cache
def _app_of(_pid: int) -> Flask:
    return create_app()


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answers, by an application that is built with the first request of each process.

    A server may import this module before it forks, and no thread or connection survives a fork.
    """
    with _lock:
        application = _app_of(os.getpid())
    return application(environ, start_response)
