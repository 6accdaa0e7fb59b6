"""Which server holds the keys now: sentinels know their master, cluster nodes who has which slot.

Asked whenever a connection is made. In between a connection to a server that has become the wrong
one breaks or is told so; only sentinels are late in telling, so they are asked once a second. Every
question goes over a connection of its own, briefly, to one server after the other, so that a frozen
one costs half a second and not the request.
"""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import parse_cluster_slots
from redis.crc import key_slot
from redis.retry import Retry

from batching.settings.redis_url import Address
from batching.store.redis_errors import AWAY

ASK_TIMEOUT_S = 0.5
DOUBT_S = 1.0
# A master that was frozen and wakes up takes writes until sentinels make it a replica, some ten
# seconds later. A cluster's finds out by itself.
LOOK_S = 1.0
LOOK_IN_VAIN_S = 10.0

Options = Mapping[str, Any]


class SeedNodes:
    """The servers that may be asked. The one that answered last is asked first.

    Unless that was only a moment ago: then the answer did not help, and another one is asked.
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
            count = len(self._order)
        for _ in range(count):
            with self._lock:
                # Before it is asked: whoever gives up waiting for it begins with the next one.
                self._order.append(place := self._order.pop(0))
            yield place

    def answered(self, place: Address, others: Iterable[Address] = ()) -> None:
        """This one is asked first the next time, and the others it knows, or the seeds, later."""
        with self._lock:
            known = {place, *self._seeds, *others}
            order = [place, *self._order, *others]
            self._order = [one for one in dict.fromkeys(order) if one in known]


class Finder(ABC):
    """Finds one server, again and again. `address` is where it was last.

    Connections opened before `doubted_at` are dropped: the server may be frozen, and each would
    cost its caller another time-out.
    """

    question: str
    may_be_deposed = False

    def __init__(self, seed_nodes: SeedNodes, options: Options, async_options: Options) -> None:
        self.address: Address | None = None
        self.doubted_at = 0.0
        self._look_at = 0.0
        self._seed_nodes = seed_nodes
        self._options = options
        self._async_options = async_options

    def find(self) -> Address:
        """Returns where the server is.

        Raises:
            ConnectionError: redis' own; nobody knows.
        """
        for place in self._seed_nodes:
            with contextlib.suppress(*AWAY), self._client(place) as client:
                return self._found(place, client.execute_command(self.question))
        raise self._unknown()

    async def find_async(self) -> Address:
        """As `find`."""
        for place in self._seed_nodes:
            with contextlib.suppress(*AWAY):
                async with self._async_client(place) as client:
                    return self._found(place, await client.execute_command(self.question))
        raise self._unknown()

    def doubt(self) -> None:
        """Notes that the server has not answered in time."""
        self.doubted_at = time.monotonic()

    def look_again(self) -> None:
        """`address` is brought up to date, if it was not lately and the server may change."""
        if self._is_time_to_look():
            with contextlib.suppress(redis.ConnectionError):
                self.find()

    async def look_again_async(self) -> None:
        """As `look_again`."""
        if self._is_time_to_look():
            with contextlib.suppress(redis.ConnectionError):
                await self.find_async()

    def _is_time_to_look(self) -> bool:
        if not self.may_be_deposed or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_IN_VAIN_S
        return True

    @abstractmethod
    def read(self, place: Address, answer: Any) -> tuple[Address, list[Address]]:
        """Returns the server's address, and whom else one may ask.

        Raises:
            ConnectionError: redis' own; it is not in the answer.
        """

    def _found(self, place: Address, answer: Any) -> Address:
        address, others = self.read(place, answer)
        self._seed_nodes.answered(place, others)
        self._look_at = time.monotonic() + LOOK_S
        self.address = address
        return address

    def _unknown(self) -> redis.ConnectionError:
        return redis.ConnectionError(f"nobody answers {self.question} with a server that is up")

    @contextlib.contextmanager
    def _client(self, place: Address) -> Iterator[Any]:
        host, port = place
        retry = Retry(NoBackoff(), 0)
        pool = redis.ConnectionPool(host=host, port=port, retry=retry, **self._options)
        with redis.Redis.from_pool(pool) as client:
            yield client

    @contextlib.asynccontextmanager
    async def _async_client(self, place: Address) -> AsyncIterator[Any]:
        host, port = place
        retry = AsyncRetry(NoBackoff(), 0)
        pool = redis.asyncio.ConnectionPool(
            host=host, port=port, retry=retry, **self._async_options
        )
        client = redis.asyncio.Redis.from_pool(pool)
        try:
            yield client
        finally:
            # Done whatever comes: `end_tasks` cancels again and again, and the connection would
            # stay open.
            await asyncio.shield(client.aclose())


class MasterFinder(Finder):
    """The master of a service, as sentinels see it. One that is down is no answer."""

    question = "SENTINEL MASTERS"
    may_be_deposed = True

    def __init__(
        self, service: str, seed_nodes: SeedNodes, options: Options, async_options: Options
    ) -> None:
        super().__init__(seed_nodes, options, async_options)
        self._service = service

    def read(self, place: Address, answer: Any) -> tuple[Address, list[Address]]:
        """Returns the address of the service's master.

        Nobody else, as sentinels name only themselves.
        """
        state = answer.get(self._service)
        if not state or not state["is_master"] or state["is_sdown"] or state["is_odown"]:
            raise redis.ConnectionError(f"no master of {self._service!r} at the sentinel {place}")
        return (str(state["ip"]), int(state["port"])), []


class SlotFinder(Finder):
    """The master that serves a hash tag's slot, as any node of the cluster sees it."""

    question = "CLUSTER SLOTS"

    def __init__(
        self, tag: str, seed_nodes: SeedNodes, options: Options, async_options: Options
    ) -> None:
        super().__init__(seed_nodes, options, async_options)
        self._slot = key_slot(tag.encode())

    def read(self, place: Address, answer: Any) -> tuple[Address, list[Address]]:
        """Returns the address of the slot's master, and all nodes."""
        ranges = parse_cluster_slots(answer, current_host=place[0])
        others = [node for found in ranges.values() for node in _nodes(found)]
        for (first, last), found in ranges.items():
            if first <= self._slot <= last:
                return _nodes(found)[0], others
        raise redis.ConnectionError(f"nobody serves slot {self._slot}, says {place}")


def _nodes(found: Mapping[str, Any]) -> list[Address]:
    return [(str(host), int(port)) for host, port in (found["primary"], *found["replicas"])]
