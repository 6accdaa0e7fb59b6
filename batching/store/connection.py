"""Connections to Redis with the retries and time-outs that a queue needs.

redis-py repeats a command by itself when the connection breaks, up to ten times; a lost reply to a
push would then push twice. Here nothing is repeated behind our back: every script is idempotent and
its caller decides. A blocking call gets its own connection, whose socket waits longer than the
server does, so that a reply can never reach a socket that nobody reads any more.
"""

from typing import Any
from urllib.parse import quote, urlencode

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from batching.settings import Settings

CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 5.0
BLOCK_S = 0.7  # a lost bell, and a stop, are noticed within a second, the ticks of Redis included
BLOCK_MARGIN_S = 5.0

RedisError = redis.RedisError
ResponseError = redis.ResponseError

# redis-py types every answer as "bytes or str" and some methods not at all; here it is bytes.
Client = Any
AsyncClient = Any


def store_url(settings: Settings) -> str:
    """`redis_url` with the files that its TLS connection needs.

    The server's certificate and name are always verified, against the system's authorities where
    `redis_ca_file` names no other.
    """
    files = {
        "ssl_ca_certs": settings.redis_ca_file,
        "ssl_certfile": settings.redis_cert_file,
        "ssl_keyfile": settings.redis_key_file,
    }
    query = urlencode({name: path for name, path in files.items() if path}, quote_via=quote)
    if not query:
        return settings.redis_url
    return f"{settings.redis_url}{'&' if '?' in settings.redis_url else '?'}{query}"


def connect(url: str, *, socket_timeout_s: float = COMMAND_TIMEOUT_S) -> Client:
    """A blocking client that never retries by itself."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_options(url, socket_timeout_s))


def connect_async(url: str, *, socket_timeout_s: float = COMMAND_TIMEOUT_S) -> AsyncClient:
    """An asyncio client that never retries by itself."""
    return redis.asyncio.Redis.from_url(
        url, retry=AsyncRetry(NoBackoff(), 0), **_options(url, socket_timeout_s)
    )


def _options(url: str, socket_timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": socket_timeout_s,
        "health_check_interval": 0,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    return options
