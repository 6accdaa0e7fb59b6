"""Connections to Redis with the retries and time-outs that a queue needs.

redis-py repeats a command by itself when the connection breaks, up to ten times; a lost reply to a
push would then push twice. Here every script is idempotent, and its caller decides whether to
repeat it. A blocking call gets a connection of its own, whose socket waits longer than the server
does, so that a reply never reaches a socket that is not read any more. A connection to a server
that has become a replica is given up: the name of a managed Redis may lead to another machine by
now, which only a new connection reaches.

Only here a URL becomes clients. Those of a single server are redis-py's own; those of servers
behind sentinels or in a cluster are in `cluster`. In a cluster a client reaches the keys of one
hash tag only: `at` gives the client of another.
"""

from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings
from batching.store import cluster
from batching.store.held_connections import (
    ASYNC_PARSER,
    PARSER,
    AsyncClient,
    Client,
    NoticesItsLoss,
    connection_options,
)

AnyClient = TypeVar("AnyClient", Client, AsyncClient)

COMMAND_TIMEOUT_S = 5.0
# A blocking pop returns at least this often. Its caller then notices within a second that something
# was lost, or that the server is elsewhere (Redis' timeouts are up to 100 ms late).
BLOCK_S = 0.6
# An idle worker may block for longer, as its node's beats make up for lost wakeups. Not much
# longer: after its connection broke, Redis may still hand one wakeup to the old wait.
IDLE_S = 2.0


def store_url(settings: Settings) -> str:
    """Returns `redis_url` with the files that its TLS connection needs.

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


def connect(url: str, *, socket_timeout_s: float | None = None) -> Client:
    """Returns a blocking client that never retries by itself."""
    if _is_spread(url):
        timeout_s = socket_timeout_s or cluster.COMMAND_TIMEOUT_S
        deployment = cluster.Deployment(RedisUrl.parse(url), timeout_s, is_async=False)
        return deployment.client()  # type: ignore[no-any-return]
    timeout_s = socket_timeout_s or COMMAND_TIMEOUT_S
    options = connection_options(timeout_s, is_local=url.startswith("unix:"))
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, retry=retry, parser_class=PARSER, **options)


def connect_async(url: str) -> AsyncClient:
    """Returns an asyncio client that never retries by itself."""
    if _is_spread(url):
        timeout_s = cluster.COMMAND_TIMEOUT_S
        deployment = cluster.Deployment(RedisUrl.parse(url), timeout_s, is_async=True)
        return deployment.client()  # type: ignore[no-any-return]
    options = connection_options(COMMAND_TIMEOUT_S, is_local=url.startswith("unix:"))
    retry = AsyncRetry(NoBackoff(), 0)
    client = redis.asyncio.Redis.from_url(url, retry=retry, parser_class=ASYNC_PARSER, **options)
    pool: Any = client.connection_pool
    kind = pool.connection_class  # by the URL: plain, TLS, or of a path
    pool.connection_class = type(kind.__name__, (NoticesItsLoss, kind), {})
    return client


def _is_spread(url: str) -> bool:
    return "+" in url.partition("://")[0]


def _deployment(client: Client | AsyncClient) -> cluster.Deployment | None:
    """Returns the servers that have to be found; None for a single server."""
    return getattr(client.connection_pool, "deployment", None)


def at(client: AnyClient, tag: str) -> AnyClient:
    """Returns the client for keys with this hash tag: in a cluster another one."""
    deployment = _deployment(client)
    return client if deployment is None else deployment.client(tag)


def for_rq(client: Client) -> Client:
    """Returns the client for RQ: in a cluster another one, which keeps RQ's keys in one slot."""
    deployment = _deployment(client)
    return client if deployment is None else deployment.client(is_for_rq=True)


def is_cluster(client: Client | AsyncClient) -> bool:
    """Returns whether the keys are on several servers, one of which may fail alone."""
    deployment = _deployment(client)
    return deployment is not None and deployment.is_cluster


def idle_s(client: Client) -> float:
    """Returns how long a worker of this client waits for work before it looks by itself."""
    # A wait goes on at the old server when another one takes over.
    return IDLE_S if _deployment(client) is None else BLOCK_S
