"""Finds the server that holds the keys now: sentinels know their master, cluster nodes all slots.

They are asked whenever a connection is made. In between, a connection to a server that has become
the wrong one breaks or is told so; only behind sentinels that comes late, so they are asked once a
second. Each question goes briefly over a connection of its own, to one server after the other, so
that a frozen one costs half a second and not the request.
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
# seconds later. In a cluster it finds out by itself.
LOOK_S = 1.0
LOOK_IN_VAIN_S = 10.0

Options = Mapping[str, Any]


class SeedNodes:
    """The servers that may be asked, the one that answered last first.

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
            count = len(self._order)
        for _ in range(count):
            with self._lock:
                # Before it is asked: a caller that gives up waiting begins with the next one.
                self._order.append(place := self._order.pop(0))
            yield place

    def answered(self, place: Address, others: Iterable[Address] = ()) -> None:
        """Puts this server first, and then the others that it knows, and the seeds."""
        with self._lock:
            known = {place, *self._seeds, *others}
            order = [place, *self._order, *others]
            self._order = [one for one in dict.fromkeys(order) if one in known]


class Finder(ABC):
    """Finds one server, again and again. `address` is its last known one.

    Connections opened before `doubted_at` are dropped: the server may be frozen, and each would
    cost its caller another time-out.
    """

    question: str
    may_be_deposed = False

    def __init__(
        self, name: str, seed_nodes: SeedNodes, options: Options, async_options: Options
    ) -> None:
        self._name = name  # of the service, or the hash tag
        self.address: Address | None = None
        self.doubted_at = 0.0
        self._look_at = 0.0
        self._seed_nodes = seed_nodes
        self._options = options
        self._async_options = async_options

    def find(self) -> Address:
        """Returns the server's address.

        Raises:
            ConnectionError: redis' own; no server that was asked knows.
        """
        for place in self._seed_nodes:
            with contextlib.suppress(*AWAY), self._client(place) as client:
                return self._found(place, client.execute_command(self.question))
        raise self._unknown()

    async def find_async(self) -> Address:
        for place in self._seed_nodes:
            with contextlib.suppress(*AWAY):
                async with self._async_client(place) as client:
                    return self._found(place, await client.execute_command(self.question))
        raise self._unknown()

    def doubt(self) -> None:
        """Notes that the server has not answered in time."""
        self.doubted_at = time.monotonic()

    def look_again(self) -> None:
        """Brings `address` up to date from time to time, where the server may change."""
        if self._is_time_to_look():
            with contextlib.suppress(redis.ConnectionError):
                self.find()

    async def look_again_async(self) -> None:
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
        """Returns the server's address, and others that may be asked.

        Raises:
            ConnectionError: redis' own; the address is not in the answer.
        """

    def _found(self, place: Address, answer: Any) -> Address:
        address, others = self.read(place, answer)
        self._seed_nodes.answered(place, others)
        self._look_at = time.monotonic() + LOOK_S
        self.address = address
        return address

    def _unknown(self) -> redis.ConnectionError:
        return redis.ConnectionError(f"no server answers {self.question} with one that is up")

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
            # Shielded: `end_tasks` cancels again and again, and the connection would stay open.
            await asyncio.shield(client.aclose())


class MasterFinder(Finder):
    """Finds the master of a service by asking sentinels. A master that is down is no answer."""

    question = "SENTINEL MASTERS"
    may_be_deposed = True

    def read(self, place: Address, answer: Any) -> tuple[Address, list[Address]]:
        state = answer.get(self._name)
        if not state or not state["is_master"] or state["is_sdown"] or state["is_odown"]:
            raise redis.ConnectionError(f"no master of {self._name!r} at the sentinel {place}")
        return (str(state["ip"]), int(state["port"])), []


class SlotFinder(Finder):
    """Finds the master that serves a hash tag's slot by asking nodes of the cluster."""

    question = "CLUSTER SLOTS"

    def read(self, place: Address, answer: Any) -> tuple[Address, list[Address]]:
        slot = key_slot(self._name.encode())
        ranges = parse_cluster_slots(answer, current_host=place[0])
        others = [node for found in ranges.values() for node in _nodes(found)]
        for (first, last), found in ranges.items():
            if first <= slot <= last:
                return _nodes(found)[0], others
        raise redis.ConnectionError(f"no server has slot {slot}, says {place}")


def _nodes(found: Mapping[str, Any]) -> list[Address]:
    return [(str(host), int(port)) for host, port in (found["primary"], *found["replicas"])]
