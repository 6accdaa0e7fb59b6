"""Clients of servers that have to be found: behind sentinels, or in a cluster.

They are plain clients whose connections ask for the address each time they connect. In a cluster
each hash tag has a client of its own, whose keys are all on one server; so scripts, transactions,
blocking and subscribing calls are what they are on a single server, and cost the same.

When a connection is lost, the call may have been carried out or not: its caller decides, here as
everywhere. A call that a server has refused, since the keys are no longer its own, was not carried
out, and is made again at the right server.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from batching.settings.redis_url import CLUSTER, RedisUrl
from batching.store.finders import (
    ASK_TIMEOUT_S,
    Finder,
    MasterFinder,
    SeedNodes,
    SlotFinder,
)
from batching.store.found_connections import (
    CONNECT_TIMEOUT_S,
    AsyncFoundConnection,
    AsyncFoundTlsConnection,
    FoundConnection,
    FoundTlsConnection,
    RqConnection,
    RqTlsConnection,
)
from batching.store.keys import HOME
from batching.store.redis_errors import NotHere
from batching.store.tcp_limits import TCP_LIMITS

# A frozen server is given up sooner than a single one, as there is another to go to.
COMMAND_TIMEOUT_S = 3.0
# redis-py refuses the 101st connection of a client unless told otherwise; every worker that a node
# speaks of, and every version that an ingress serves, may need one at the same moment.
MOST_CONNECTIONS = 2**31
# A scrape of metrics asks for every version, and mostly more often.
UNUSED_S = 300.0

ASK_AGAIN = 3
ASK_AGAIN_S = 0.05

_DEFAULTS = {
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "max_connections": MOST_CONNECTIONS,
    "protocol": 2,  # RESP3 would cost each new connection a round trip, for nothing
}

# MOVED, which is an AskError, comes when a slot has moved; ASK and TRYAGAIN while it moves.
_NOT_DONE = (NotHere, redis.exceptions.AskError, redis.exceptions.TryAgainError)


class Deployment:
    """The servers behind one URL, and a client for each hash tag in use."""

    def __init__(
        self,
        url: RedisUrl,
        make_client: Callable[..., Any],
        *,
        kept_s: float = math.inf,
        **options: Any,
    ) -> None:
        self.is_cluster = url.kind == CLUSTER
        self.is_tls = url.is_tls
        self._url = url
        self._make_client = make_client
        self._kept_s = kept_s
        self._options = options
        self._seed_nodes = SeedNodes(url.addresses)
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, bool], Any] = {}

    def client(self, tag: str, *, is_for_rq: bool = False) -> Any:
        """Returns the client for the keys with this hash tag, the same one as long as it is in use.

        When one is made, those that were not asked for within `kept_s` are let go.
        """
        name = (tag, is_for_rq) if self.is_cluster else (HOME, False)
        now_s = time.monotonic()
        with self._lock:
            client = self._clients.get(name)
            if client is None:
                self._let_go(now_s - self._kept_s)
                client = self._make_client(self, self._finder(tag), is_for_rq)
                self._clients[name] = client
            client.connection_pool.asked_for_at = now_s
            return client

    def _let_go(self, since: float) -> None:
        clients = self._clients.items()
        unused = [name for name, one in clients if one.connection_pool.asked_for_at < since]
        for name in unused:
            if name[0] != HOME:
                # It closes itself when no thread has it any more.
                del self._clients[name]

    def take_unused(self, tags: Iterable[str]) -> list[Any]:
        """Takes out the unused asyncio clients of other hash tags; the caller closes them."""
        kept = {HOME, *tags}
        with self._lock:
            unused = [
                name
                for name, client in self._clients.items()
                if name[0] not in kept and not client.connection_pool.is_at_work
            ]
            return [self._clients.pop(name) for name in unused]

    def others(self, pool: Any) -> list[Any]:
        """Returns the pools of other hash tags if this is the first pool, which closes all."""
        pools = [client.connection_pool for client in list(self._clients.values())]
        return pools[1:] if pools and pools[0] is pool else []

    def connection_options(self, parse_url: Callable[[str], Any]) -> dict[str, Any]:
        """Returns redis-py's options; those of the URL, its user and password included, win."""
        own = {n: v for n, v in self._url.options.items() if not n.startswith("sentinel_")}
        scheme = "rediss" if self.is_tls else "redis"
        options: dict[str, Any] = parse_url(f"{scheme}://found/{self._url.db}?{urlencode(own)}")
        for name in ("connection_class", "host"):
            options.pop(name, None)
        options.setdefault("socket_keepalive", True)
        options.setdefault("socket_keepalive_options", TCP_LIMITS)
        login = {"username": self._url.username, "password": self._url.password}
        options |= {name: text for name, text in login.items() if text}
        return {**_DEFAULTS, **self._options, **options}

    def _finder(self, tag: str) -> Finder:
        options = self._asking(redis.connection)
        async_options = self._asking(redis.asyncio.connection)
        if self.is_cluster:
            return SlotFinder(tag, self._seed_nodes, options, async_options)
        return MasterFinder(self._url.service, self._seed_nodes, options, async_options)

    def _asking(self, library: Any) -> dict[str, Any]:
        """Returns options of the connections on which sentinels or cluster nodes are asked.

        They have short time-outs and, for sentinels, a user and password of their own.
        """
        options = self.connection_options(library.parse_url)
        if not self.is_cluster:
            for name in ("username", "password", "db"):
                options.pop(name, None)
            own = {n: v for n, v in self._url.options.items() if n.startswith("sentinel_")}
            options |= {name.removeprefix("sentinel_"): text for name, text in own.items()}
        kind = library.SSLConnection if self.is_tls else library.Connection
        times = {"socket_timeout": ASK_TIMEOUT_S, "socket_connect_timeout": ASK_TIMEOUT_S}
        return {**options, **times, "connection_class": kind}


class FoundPool(redis.ConnectionPool):
    """A pool of connections to one server of a deployment."""

    deployment: Deployment
    asked_for_at = 0.0  # by the monotonic clock

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Closes the connections; the first client's pool also closes those of other hash tags."""
        super().disconnect(inuse_connections)
        for pool in self.deployment.others(self):
            pool.disconnect(inuse_connections)


class AsyncFoundPool(redis.asyncio.ConnectionPool):
    """As `FoundPool`."""

    deployment: Deployment
    asked_for_at = 0.0

    @property
    def is_at_work(self) -> bool:
        return bool(self._in_use_connections)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for pool in self.deployment.others(self):
            await pool.disconnect(inuse_connections)


def connect(url: RedisUrl, socket_timeout_s: float, *, kept_s: float = UNUSED_S) -> Any:
    """Returns a blocking client of the registry's keys; only what was refused is sent again.

    Clients of other hash tags are let go when they were not asked for within `kept_s`: versions
    come and go.
    """
    deployment = Deployment(url, _make_client, kept_s=kept_s, socket_timeout=socket_timeout_s)
    return deployment.client(HOME)


def connect_async(url: RedisUrl) -> Any:
    """Returns an asyncio client of the registry's keys; only what was refused is sent again."""
    return Deployment(url, _make_async_client, socket_timeout=COMMAND_TIMEOUT_S).client(HOME)


def _make_client(deployment: Deployment, finder: Finder, is_for_rq: bool) -> Any:
    kinds = ((FoundConnection, FoundTlsConnection), (RqConnection, RqTlsConnection))
    pool = FoundPool(
        connection_class=kinds[is_for_rq][deployment.is_tls],
        finder=finder,
        retry=Retry(ConstantBackoff(ASK_AGAIN_S), ASK_AGAIN, supported_errors=_NOT_DONE),
        **deployment.connection_options(redis.connection.parse_url),
    )
    pool.deployment = deployment
    return redis.Redis.from_pool(pool)


def _make_async_client(deployment: Deployment, finder: Finder, _is_for_rq: bool) -> Any:
    pool = AsyncFoundPool(
        connection_class=AsyncFoundTlsConnection if deployment.is_tls else AsyncFoundConnection,
        finder=finder,
        retry=AsyncRetry(ConstantBackoff(ASK_AGAIN_S), ASK_AGAIN, supported_errors=_NOT_DONE),
        **deployment.connection_options(redis.asyncio.connection.parse_url),
    )
    pool.deployment = deployment
    return redis.asyncio.Redis.from_pool(pool)
