"""Clients of servers that have to be found: behind sentinels, or in a cluster (ADR 0007).

They are plain clients whose connections ask for the address each time they connect: sentinels know
their master, nodes of a cluster all slots. In a cluster each hash tag has a client of its own,
whose keys are all on one server; so scripts, transactions, blocking and subscribing calls are what
they are on a single server, and cost the same.

When a connection is lost, the call may have been carried out or not: its caller decides, here as
everywhere. A call that a server has refused, since the keys are no longer its own, was not carried
out, and is made again at the right server.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import redis
import redis.asyncio
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff, NoBackoff
from redis.cluster import parse_cluster_slots
from redis.connection import HiredisRespSerializer
from redis.crc import key_slot
from redis.retry import Retry

from batching.settings.redis_url import CLUSTER, Address, RedisUrl
from batching.store.held_connections import (
    ASYNC_PARSER,
    CONNECT_TIMEOUT_S,
    NOT_DONE,
    PARSER,
    NoticesItsLoss,
    connection_options,
)
from batching.store.keys import HOME
from batching.store.redis_errors import AWAY, NotHere

# A frozen server is given up sooner than a single one, as there is another to go to.
COMMAND_TIMEOUT_S = 3.0
# A scrape of metrics asks for every version, and mostly more often.
UNUSED_S = 300.0

ASK_TIMEOUT_S = 0.5
ASK_AGAIN = 3
ASK_AGAIN_S = 0.05
ASKED_AT_ONCE = 4
DOUBT_S = 1.0
# A master that was frozen and wakes up takes writes until sentinels make it a replica, some ten
# seconds later. In a cluster it finds out by itself.
LOOK_S = 1.0
LOOK_IN_VAIN_S = 10.0


class SeedNodes:
    """Names the servers that may be asked, the one that answered last first.

    If that was only a moment ago, the answer did not help, and another one comes first.
    """

    def __init__(self, seeds: Iterable[Address], doubt_s: float = DOUBT_S) -> None:
        self._doubt_s = doubt_s
        self._seeds = list(dict.fromkeys(seeds))
        self._order = list(self._seeds)
        self._asked_at = -doubt_s
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Address]:
        with self._lock:
            if time.monotonic() - self._asked_at < self._doubt_s:
                self._order.append(self._order.pop(0))
            self._asked_at = time.monotonic()
            return iter(list(self._order))

    def answered(self, server: Address, others: Iterable[Address] = ()) -> None:
        """Puts this server first, and then the others that it knows, and the seeds."""
        with self._lock:
            known = {server, *self._seeds, *others}
            order = [server, *self._order, *others]
            self._order = [address for address in dict.fromkeys(order) if address in known]


class Finder:
    """Finds the master behind sentinels, or of a hash tag's slot in a cluster, again and again.

    It is asked for whenever a connection is made. In between, a connection to a server that has
    become the wrong one breaks or is told so; only behind sentinels that comes late, so they are
    asked once a second. Each question goes briefly over a connection of its own, to one server
    after the other, so that a frozen one costs half a second and not the request.

    `address` is the last known one. Connections opened before `doubted_at` are dropped: the server
    may be frozen, and each would cost its caller another time-out.
    """

    def __init__(
        self, name: str, seed_nodes: SeedNodes, options: Mapping[str, Any], *, is_cluster: bool
    ) -> None:
        self._name = name  # of the service, or the hash tag
        self._seed_nodes = seed_nodes
        self._options = options
        self._is_cluster = is_cluster
        self._look_at = 0.0
        self.address: Address | None = None
        self.doubted_at = 0.0

    def find(self) -> Address:
        """Returns the server's address.

        Raises:
            ConnectionError: redis' own; no server that was asked knows.
        """
        question = "CLUSTER SLOTS" if self._is_cluster else "SENTINEL MASTERS"
        for host, port in self._seed_nodes:
            retry = Retry(NoBackoff(), 0)
            pool = redis.ConnectionPool(host=host, port=port, retry=retry, **self._options)
            with contextlib.suppress(*AWAY), redis.Redis.from_pool(pool) as client:
                answer = client.execute_command(question)
                self.address, others = self.read((host, port), answer)
                self._seed_nodes.answered((host, port), others)
                self._look_at = time.monotonic() + LOOK_S
                return self.address
        raise redis.ConnectionError(f"no server answers for {self._name}")

    @property
    def is_time_to_look(self) -> bool:
        """Returns whether `look_again` is to be called: the server may have changed unheard."""
        return not self._is_cluster and time.monotonic() >= self._look_at

    def look_again(self) -> None:
        self._look_at = time.monotonic() + LOOK_IN_VAIN_S
        with contextlib.suppress(redis.ConnectionError):
            self.find()

    def read(self, server: Address, answer: Any) -> tuple[Address, list[Address]]:
        """Returns the address in this server's answer, and others that may be asked.

        Raises:
            ConnectionError: redis' own; the address is not in it. A master that is down is none.
        """
        if not self._is_cluster:
            state = answer.get(self._name)
            if not state or not state["is_master"] or state["is_sdown"] or state["is_odown"]:
                raise redis.ConnectionError(f"no master of {self._name!r} at the sentinel {server}")
            return (str(state["ip"]), int(state["port"])), []
        slot = key_slot(self._name.encode())
        ranges = parse_cluster_slots(answer, current_host=server[0])
        others = [address for nodes in ranges.values() for address in _addresses(nodes)]
        for (first, last), nodes in ranges.items():
            if first <= slot <= last:
                return _addresses(nodes)[0], others
        raise redis.ConnectionError(f"no server has slot {slot}, says {server}")


def _addresses(nodes: Mapping[str, Any]) -> list[Address]:
    return [(str(host), int(port)) for host, port in (nodes["primary"], *nodes["replicas"])]


# RQ changes several keys in one transaction and names them itself (`rq:queues`, `rq:job:ID`, ...).
# In a cluster the names are completed on the wire: `rq:x` is sent as `{ferry}:rq:x` and comes back
# as `rq:x`, so RQ sees what it knows and the server sees keys that are on one node.
_RQ_PREFIX = f"{HOME}:".encode()


class RqPacker(HiredisRespSerializer):
    """Packs commands with the names that the server knows."""

    def pack(self, *arguments: Any) -> Any:
        octets: list[Any] = [one.encode() if isinstance(one, str) else one for one in arguments]
        for n, one in enumerate(octets):
            if isinstance(one, bytes) and one.startswith(b"rq:"):
                octets[n] = _RQ_PREFIX + one
        return super().pack(*octets)


def received(answer: Any) -> Any:
    """Returns the answer with the names that RQ knows, at any depth."""
    if isinstance(answer, bytes):
        is_of_rq = answer.startswith(_RQ_PREFIX + b"rq:")
        return answer[len(_RQ_PREFIX) :] if is_of_rq else answer
    if isinstance(answer, list | set):
        return type(answer)(map(received, answer))
    if isinstance(answer, dict):
        return {received(name): received(value) for name, value in answer.items()}
    return answer


class FoundConnection(redis.Connection):
    """Connects to the server's present address; a frozen server has a second to greet."""

    def __init__(self, finder: Finder, is_for_rq: bool = False, **options: Any) -> None:
        packer = RqPacker() if is_for_rq else None
        super().__init__(  # type: ignore[no-untyped-call]
            parser_class=PARSER, command_packer=packer, **options
        )
        self.finder = finder
        self._is_for_rq = is_for_rq
        self._opened_at = 0.0

    def connect(self) -> None:
        if self.is_connected:
            if self.finder.is_time_to_look:
                self.finder.look_again()
            if self._is_elsewhere():
                self.disconnect()  # type: ignore[no-untyped-call]
        super().connect()  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self._is_elsewhere():
            self.disconnect()  # type: ignore[no-untyped-call]
            # Not just connected again: a WATCH would be lost.
            raise NotHere("the server is elsewhere now")
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Returns the answer; after a time-out no older connection is trusted."""
        try:
            answer = super().read_response(*arguments, **options)
        except redis.TimeoutError:
            if "timeout" not in options:  # otherwise a look at a channel, which may be silent
                self.finder.doubted_at = time.monotonic()
            raise
        return received(answer) if self._is_for_rq else answer

    def _is_elsewhere(self) -> bool:
        is_right = (self.host, self.port) == self.finder.address
        is_trusted = self._opened_at > self.finder.doubted_at
        return self.is_connected and not (is_right and is_trusted)

    def on_connect_check_health(self, check_health: bool = True) -> None:
        connected: Any = self._sock
        connected.settimeout(CONNECT_TIMEOUT_S)
        super().on_connect_check_health(check_health=check_health)
        connected.settimeout(self.socket_timeout)

    def _connect(self) -> Any:
        # Not in `connect`, which redis-py does not call when a held connection reconnects.
        self.host, self.port = self.finder.find()
        self._opened_at = time.monotonic()
        return super()._connect()  # type: ignore[no-untyped-call]


class FoundTlsConnection(FoundConnection, redis.SSLConnection):
    """Connects with TLS."""


class AsyncFoundConnection(NoticesItsLoss, redis.asyncio.Connection):
    """As `FoundConnection`. Servers are asked in threads, which end whatever the caller does."""

    def __init__(self, *, finder: Finder, asking: ThreadPoolExecutor, **options: Any) -> None:
        super().__init__(parser_class=ASYNC_PARSER, **options)
        self.finder = finder
        self._asking = asking

    async def connect(self) -> None:
        if self.is_connected:
            if self.finder.is_time_to_look:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._asking, self.finder.look_again)
            if self.is_elsewhere:
                await self.disconnect()
        await super().connect()  # type: ignore[no-untyped-call]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self.is_elsewhere:
            await self.disconnect()
            raise NotHere("the server is elsewhere now")
        await super().send_packed_command(command, check_health)

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]
        return (self.host, self.port) != self.finder.address and bool(self.is_connected)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await super().on_connect_check_health(check_health=check_health)
        except TimeoutError:
            raise redis.TimeoutError(f"{self.host}:{self.port} does not greet") from None

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self.host, self.port = await loop.run_in_executor(self._asking, self.finder.find)
        await super()._connect()


class AsyncFoundTlsConnection(AsyncFoundConnection, redis.asyncio.SSLConnection):
    """Connects with TLS."""


class FoundPool(redis.ConnectionPool):
    """A pool of connections to one server of a deployment.

    When the first client's pool is closed, those of other hash tags are, too.
    """

    deployment: "Deployment"
    asked_for_at = 0.0  # by the monotonic clock

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        for pool in self.deployment.others(self):
            pool.disconnect(inuse_connections)


class AsyncFoundPool(redis.asyncio.ConnectionPool):
    """As `FoundPool`."""

    deployment: "Deployment"
    asked_for_at = 0.0

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for pool in self.deployment.others(self):
            await pool.disconnect(inuse_connections)


class Deployment:
    """Keeps the servers behind one URL, and a client for each hash tag in use.

    Only what was refused is sent again. When a client is made, those of other hash tags that no
    call uses, and that were not asked for within `kept_s`, are dropped: versions come and go.
    """

    def __init__(
        self, url: RedisUrl, socket_timeout_s: float, *, is_async: bool, kept_s: float = UNUSED_S
    ) -> None:
        self.is_cluster = url.kind == CLUSTER
        self._url = url
        self._is_async = is_async
        self._kept_s = kept_s
        self._socket_timeout_s = socket_timeout_s
        self._seed_nodes = SeedNodes(url.addresses)
        self._asking = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="finder")
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, bool], Any] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def client(self, tag: str = HOME, *, is_for_rq: bool = False) -> Any:
        """Returns the client for the keys with this hash tag, the same one as long as it is in use.

        Without a tag that of the registry's keys.
        """
        name = (tag, is_for_rq) if self.is_cluster else (HOME, False)
        now_s = time.monotonic()
        with self._lock:
            client = self._clients.get(name)
            if client is None:
                self._drop_unused(now_s - self._kept_s)
                client = self._clients[name] = self._make_client(tag, is_for_rq)
            client.connection_pool.asked_for_at = now_s
            return client

    def _drop_unused(self, since_s: float) -> None:
        for name, client in list(self._clients.items()):
            pool = client.connection_pool
            if name[0] != HOME and pool.asked_for_at < since_s and not pool._in_use_connections:  # noqa: SLF001 - redis-py says it nowhere else
                # A blocking one closes itself when no thread has it any more.
                del self._clients[name]
                if self._is_async:
                    closing = asyncio.ensure_future(pool.disconnect())
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    def others(self, pool: Any) -> list[Any]:
        """Returns the pools of other hash tags if this is the first pool, which closes all."""
        pools = [client.connection_pool for client in list(self._clients.values())]
        return pools[1:] if pools and pools[0] is pool else []

    def _make_client(self, tag: str, is_for_rq: bool) -> Any:
        name = tag if self.is_cluster else self._url.service
        asking, is_cluster = self._asking_options(), self.is_cluster
        options = {
            "finder": Finder(name, self._seed_nodes, asking, is_cluster=is_cluster),
            **self._options(),
        }
        again, is_tls = (ConstantBackoff(ASK_AGAIN_S), ASK_AGAIN), self._url.is_tls
        pool: Any
        if self._is_async:
            options |= {"asking": self._asking, "retry": AsyncRetry(*again, NOT_DONE)}
            kind: Any = AsyncFoundTlsConnection if is_tls else AsyncFoundConnection
            pool = AsyncFoundPool(connection_class=kind, **options)
        else:
            options |= {"is_for_rq": is_for_rq, "retry": Retry(*again, NOT_DONE)}
            kind = FoundTlsConnection if is_tls else FoundConnection
            pool = FoundPool(connection_class=kind, **options)
        pool.deployment = self
        return (redis.asyncio.Redis if self._is_async else redis.Redis).from_pool(pool)

    def _options(self) -> dict[str, Any]:
        """Returns redis-py's options; those of the URL, its user and password included, win."""
        own = {n: v for n, v in self._url.options.items() if not n.startswith("sentinel_")}
        scheme = "rediss" if self._url.is_tls else "redis"
        url = f"{scheme}://found/{self._url.db}?{urlencode(own)}"
        options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
        for name in ("connection_class", "host"):
            options.pop(name, None)
        login = {"username": self._url.username, "password": self._url.password}
        options |= {name: text for name, text in login.items() if text}
        return connection_options(self._socket_timeout_s) | options

    def _asking_options(self) -> dict[str, Any]:
        """Returns options of the connections on which sentinels or cluster nodes are asked.

        They have short time-outs and, for sentinels, a user and password of their own.
        """
        options = self._options()
        if not self.is_cluster:
            for name in ("username", "password", "db"):
                options.pop(name, None)
            own = {n: v for n, v in self._url.options.items() if n.startswith("sentinel_")}
            options |= {name.removeprefix("sentinel_"): text for name, text in own.items()}
        kind = redis.SSLConnection if self._url.is_tls else redis.Connection
        times = {"socket_timeout": ASK_TIMEOUT_S, "socket_connect_timeout": ASK_TIMEOUT_S}
        return {**options, **times, "connection_class": kind}
