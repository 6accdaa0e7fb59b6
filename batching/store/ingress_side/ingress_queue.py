"""The ingress's calls on one version's queue: submit, receive, audit, cancel."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from redis.exceptions import OutOfMemoryError

from batching.models.spec import VersionKey
from batching.protocol import INLINE_LIMIT_BYTES, Wire
from batching.store.client_types import AsyncClient
from batching.store.clients import BLOCK_S, at
from batching.store.connections.async_held_connection import AsyncHeldConnection, Command
from batching.store.keys import LEASE_TTL_MS, VersionKeys
from batching.store.open_records import rest_of_record
from batching.store.replies import named_request
from batching.store.scripts.loader import ordered_keys, script

RECEIVE_AT_ONCE = 256
CHUNKS_AT_ONCE = 16


class SubmitCode(IntEnum):
    """What `submit.lua` answers for one request."""

    QUEUED = 1
    KNOWN = 2
    FULL = 0
    NO_VERSION = -1
    NO_WORKER = -2
    NO_MEMORY = -3  # not the script's: the body found no room
    NO_TICKET = -4
    NO_BEAT = -5


_SUBMIT_CODES = {code.value: code for code in SubmitCode}  # calling the enumeration is slow


class AuditCode(IntEnum):
    """What `audit.lua` answers for one request."""

    LOST = 0
    OPEN = 1
    REPLIED = 2
    STREAMED = 3
    ABANDONED = 4


class CancelCode(IntEnum):
    """What `cancel.lua` answers for one request."""

    UNKNOWN = 0
    CANCELLED = 1
    REPLIED = 2


class Submission(NamedTuple):
    """One request on its way into the queue; without an age, Redis has lost it before."""

    request_id: str
    ttl_ms: int
    wire: Wire
    age_us: int | None = 0


class IngressQueue:
    """Calls the scripts; raises redis' own errors."""

    def __init__(
        self,
        client: AsyncClient,
        key: VersionKey,
        ingress_id: str,
        dead_after_ms: int,
        *,
        block_s: float = BLOCK_S,
    ) -> None:
        self._block_s = block_s
        self._ingress_id = ingress_id
        self._dead_after_ms = dead_after_ms
        self._keys = keys = VersionKeys.of(key)
        self._client = client = at(client, keys.tag)
        self._done = keys.done_prefix + ingress_id
        self._listener = AsyncHeldConnection(client)
        self._submitter = AsyncHeldConnection(client)
        self._cancel = script(client, "cancel")
        self._audit = script(client, "audit")
        self._submit_keys = ordered_keys("submit", keys)
        self._cancel_keys = ordered_keys("cancel", keys)
        self._audit_keys = ordered_keys("audit", keys)

    async def close(self) -> None:
        """Closes its own connections; no call may be under way."""
        await self._listener.close()
        await self._submitter.close()

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitCode]:
        """Submits each request, or refuses it with a code."""
        large = [item for item in submissions if item.wire.size_bytes > INLINE_LIMIT_BYTES]
        if not large:
            return await self._submit_script(submissions)
        without_room = await self._write_bodies(large)
        fitting = [item for item in submissions if item.request_id not in without_room]
        try:
            codes = iter(await self._submit_script(fitting))
        except OutOfMemoryError:
            # Nothing was queued: bodies that no worker will read must not fill the memory.
            await self._drop_bodies(large)
            raise
        found = [
            SubmitCode.NO_MEMORY if item.request_id in without_room else next(codes)
            for item in submissions
        ]
        outcomes = zip(submissions, found, strict=True)
        await self._drop_bodies([item for item, code in outcomes if code <= 0 and item in large])
        return found

    async def _submit_script(self, submissions: Sequence[Submission]) -> list[SubmitCode]:
        if not submissions:
            return []
        ingress_id = self._ingress_id
        longest_ms = max(item.ttl_ms for item in submissions)
        arguments: list[str | int | bytes] = [ingress_id, self._dead_after_ms, longest_ms]
        for request_id, ttl_ms, wire, age_us in submissions:
            inline = wire.head if wire.size_bytes <= INLINE_LIMIT_BYTES else b""
            arguments += (request_id, rest_of_record(ingress_id, ttl_ms, age_us, inline))
        codes = await self._submitter.run("submit", self._submit_keys, arguments)
        return [_SUBMIT_CODES[code] for code in codes]

    async def _write_bodies(self, large: Sequence[Submission]) -> set[str]:
        """Writes the bodies that fit into Redis; returns the ids of the others.

        The last one that did fit counts among the others: the script needs some room, too.
        """
        async with self._client.pipeline(transaction=False) as pipe:
            for item in large:
                name = self._keys.body_prefix + item.request_id
                pipe.set(name, item.wire.head + item.wire.body, px=item.ttl_ms + 60_000)
            results = await pipe.execute(raise_on_error=False)
        refused = [isinstance(result, OutOfMemoryError) for result in results]
        for result, is_refused in zip(results, refused, strict=True):
            if isinstance(result, Exception) and not is_refused:
                raise result
        if not any(refused):
            return set()
        last_written = max(refused.index(True) - 1, 0)
        refused[last_written] = True
        await self._drop_bodies([large[last_written]])
        return {item.request_id for item, no in zip(large, refused, strict=True) if no}

    async def _drop_bodies(self, large: Sequence[Submission]) -> None:
        names = [self._keys.body_prefix + item.request_id for item in large]
        if names:
            await self._client.unlink(*names)

    async def receive(self, delivered: Sequence[str]) -> dict[str, bytes | None]:
        """Deletes the reply keys of `delivered`; returns the values of those that have come since.

        Blocks up to `block_s`; empty when nothing came. One caller at a time.
        """
        pop: Command = ("BLMPOP", self._block_s, 1, self._done, "LEFT", "COUNT", RECEIVE_AT_ONCE)
        discard: list[Command] = [("UNLINK", *self._reply_keys(delivered))] if delivered else []
        answer = (await self._listener.call(*discard, pop))[-1]
        if not answer:
            return {}
        found: dict[str, bytes | None] = {}
        for entry in answer[1]:
            request_id = named_request(entry)
            found[request_id] = entry if len(entry) > len(request_id) else None
        without_value = [request_id for request_id, value in found.items() if value is None]
        if without_value:
            [values] = await self._listener.call(("MGET", *self._reply_keys(without_value)))
            found.update(zip(without_value, values, strict=True))
        return found

    async def fetch(self, request_ids: Sequence[str]) -> dict[str, bytes | None]:
        """Returns the values of these reply keys; reading them again is safe."""
        values = await self._client.mget(self._reply_keys(request_ids))
        return dict(zip(request_ids, values, strict=True))

    async def fetch_large(self, attempts: Mapping[str, str]) -> dict[str, bytes | None]:
        """Returns the values of large replies' own keys, by request; reading them again is safe.

        Args:
            attempts: by request, which attempt's reply it is.
        """
        values = await self._client.mget(self._large_replies(attempts))
        return dict(zip(attempts, values, strict=True))

    async def discard_large(self, attempts: Mapping[str, str]) -> None:
        """Deletes these large replies and their reply keys."""
        names = self._large_replies(attempts) + self._reply_keys(list(attempts))
        await self._client.unlink(*names)

    async def discard(self, delivered: Sequence[str]) -> None:
        """Deletes these reply keys, one at least."""
        await self._client.unlink(*self._reply_keys(delivered))

    async def read_chunks(self, request_id: str, taken: int) -> list[bytes]:
        """Deletes the first `taken` pieces of an answer; returns the oldest of the others."""
        name = self._keys.chunk_prefix + request_id
        async with self._client.pipeline(transaction=False) as pipe:
            if taken:
                pipe.ltrim(name, taken, -1)
            pipe.lrange(name, 0, CHUNKS_AT_ONCE - 1)
            return (await pipe.execute())[-1]  # type: ignore[no-any-return]

    async def discard_chunks(self, request_id: str) -> None:
        await self._client.unlink(self._keys.chunk_prefix + request_id)

    async def cancel(self, request_ids: Sequence[str]) -> list[CancelCode]:
        """Takes these requests out of the queue, unless they have been answered already."""
        return [CancelCode(code) for code in await self._cancel(self._cancel_keys, request_ids)]

    async def audit(self, request_ids: Sequence[str]) -> list[AuditCode]:
        """Tells Redis that this ingress is alive; returns where these requests are."""
        arguments = [self._ingress_id, LEASE_TTL_MS, self._dead_after_ms, *request_ids]
        return [AuditCode(code) for code in await self._audit(self._audit_keys, arguments)]

    def _large_replies(self, attempts: Mapping[str, str]) -> list[str]:
        prefix = self._keys.large_reply_prefix
        return [f"{prefix}{request_id}:{attempt}" for request_id, attempt in attempts.items()]

    def _reply_keys(self, request_ids: Sequence[str]) -> list[str]:
        return [self._keys.reply_prefix + request_id for request_id in request_ids]
