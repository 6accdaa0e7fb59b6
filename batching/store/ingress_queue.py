"""The ingress's calls on one version's queue: submit, receive, audit, cancel."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, cast

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from batching.models.spec import VersionKey
from batching.protocol import Wire
from batching.store.clients import BLOCK_S, at
from batching.store.held_connections import (
    AsyncClient,
    AsyncHeldConnection,
    Buffer,
    Command,
    packed,
    packed_set,
)
from batching.store.keys import LEASE_TTL_MS, VersionKeys
from batching.store.records import named_request, rest_of_record
from batching.store.redis_errors import AWAY
from batching.store.scripts.loader import command, ordered_keys, script

RECEIVE_AT_ONCE = 256
CHUNKS_AT_ONCE = 16
PROBE_S = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """Says how long an ingress's channels wait for Redis, and what for."""

    submit_s: float = 0.8  # Redis down at submit is answered within a second
    submit_bytes: int = 16 * 1024 * 1024  # more at once would keep other requests waiting
    bytes_per_s: float = 10_000_000  # what large bodies get time for: a line of 100 Mbit/s
    retry_s: float = 0.05  # between two tries of a call
    block_s: float = BLOCK_S
    read_s: float = 5.0  # Redis may be away for this long in the middle of a stream
    cancel_s: float = 0.06  # an answer is due 0.1 s after the deadline, if Redis answers or not
    back_s: float = 3.0  # Redis counts as just back for this long
    # A refused submit is repeated for this long: a node restores an emptied registry within a beat.
    version_s: float = 1.5
    beat_s: float = 1.0  # a worker that lives has beaten by then
    audit_s: float = 0.5  # losses are noticed within twice this
    resubmit_share: float = 0.25  # of the deadline must be left to submit a lost request again
    unused_s: float = 60.0  # then a channel is closed


USUAL_PATIENCE = Patience()


class SubmitCode(IntEnum):
    """Names what `submit.lua` answers for one request."""

    QUEUED = 1
    KNOWN = 2
    FULL = 0
    NO_VERSION = -1
    NO_WORKER = -2
    NO_MEMORY = -3
    NO_BEAT = -5
    TOO_LARGE = -6  # for Redis, which closes the connection; never the script's
    NO_RETRY = -7  # no job that can be tried again


_REFUSED_WITH_BODY = frozenset(
    {code for code in SubmitCode if code <= 0 and code is not SubmitCode.NO_MEMORY}
)
_SUBMIT_CODES = {code.value: code for code in SubmitCode}  # calling the enumeration is slow


class AuditCode(IntEnum):
    """Names what `audit.lua` answers for one request."""

    LOST = 0
    OPEN = 1
    REPLIED = 2
    STREAMED = 3
    ABANDONED = 4


class CancelCode(IntEnum):
    """Names what `cancel.lua` answers for one request."""

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
        self._large = AsyncHeldConnection(client, is_for_strings=True)
        self._cancel = script(client, "cancel")
        self._audit = script(client, "audit")
        self._submit_keys = ordered_keys("submit", keys)
        self._cancel_keys = ordered_keys("cancel", keys)
        self._audit_keys = ordered_keys("audit", keys)

    async def close(self) -> None:
        """Closes its own connections; no call may be under way."""
        await self._listener.close()
        await self._submitter.close()
        await self._large.close()

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitCode]:
        """Submits each request, or refuses it with a code.

        Large bodies leave in one write with the script and before it. It refuses those requests
        whose bodies found no room.
        """
        ingress_id = self._ingress_id
        longest_ms = max([item.ttl_ms for item in submissions])
        arguments: list[str | int | bytes] = [ingress_id, self._dead_after_ms, longest_ms]
        for item in submissions:
            inline = b"" if item.wire.body else item.wire.head
            rest = rest_of_record(ingress_id, item.ttl_ms, item.age_us, inline)
            arguments += (item.request_id, rest)
        large = [item for item in submissions if item.wire.body]
        if not large:
            numbers = await self._submitter.run("submit", self._submit_keys, arguments)
            return [_SUBMIT_CODES[number] for number in numbers]
        numbers = await self._submit_with_bodies(large, arguments)
        codes = [_SUBMIT_CODES[number] for number in numbers]
        refused = [
            item
            for item, code in zip(submissions, codes, strict=True)
            if item.wire.body and code in _REFUSED_WITH_BODY
        ]
        await self._drop_bodies(refused)
        return codes

    async def refuses(self, size_bytes: int) -> bool:
        """Returns whether a value of this size is over Redis' `proto-max-bulk-len`.

        Redis closes the connection on which such a value is on its way, and its reason is lost. So
        this announces a value, and sends none of it. The setting itself is mostly not ours to read.
        """
        probe = AsyncHeldConnection(self._client)
        try:
            announced = b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % size_bytes
            async with asyncio.timeout(PROBE_S):
                [answer] = await probe.exchange((announced,), 1)
        except AWAY:  # it waits for the value, or is away
            return False
        finally:
            await probe.close()
        return isinstance(answer, ResponseError) and "bulk length" in str(answer)

    async def _submit_with_bodies(
        self, large: Sequence[Submission], arguments: Sequence[str | int | bytes]
    ) -> list[int]:
        buffers: list[Buffer] = []
        for item in large:
            name = self._keys.body_prefix + item.request_id
            buffers += packed_set(name, item.wire, item.ttl_ms + 60_000)
        buffers.append(packed(command("submit", self._submit_keys, arguments)))
        *stored, codes = await self._submitter.exchange(buffers, len(large) + 1)
        for answer in stored:
            if isinstance(answer, Exception) and not isinstance(answer, OutOfMemoryError):
                raise answer
        if isinstance(codes, OutOfMemoryError):
            # The last body that did fit left no room for the script.
            outcomes = zip(large, stored, strict=True)
            fitting = [item for item, answer in outcomes if not isinstance(answer, Exception)]
            await self._drop_bodies(fitting[-1:])
        if isinstance(codes, (NoScriptError, OutOfMemoryError)):
            try:
                codes = await self._submitter.run("submit", self._submit_keys, arguments)
            except OutOfMemoryError:
                # Nothing was queued: bodies that no worker will read must not fill the memory.
                await self._drop_bodies(large)
                raise
        if isinstance(codes, Exception):
            raise codes
        return cast("list[int]", codes)

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
        values: dict[str, bytes | None] = {}
        for entry in answer[1] if answer else ():
            request_id = named_request(entry)
            values[request_id] = entry if len(entry) > len(request_id) else None
        elsewhere = [request_id for request_id, value in values.items() if value is None]
        if elsewhere:
            [fetched] = await self._listener.call(("MGET", *self._reply_keys(elsewhere)))
            values.update(zip(elsewhere, fetched, strict=True))
        return values

    async def fetch(self, request_ids: Sequence[str]) -> dict[str, bytes | None]:
        values: list[Any] = await self._client.mget(self._reply_keys(request_ids))
        return dict(zip(request_ids, values, strict=True))

    async def fetch_large(
        self, attempts: Mapping[str, str], read: Mapping[str, str]
    ) -> dict[str, memoryview | None]:
        """Returns the values of large replies' own keys, by request; reading them again is safe.

        Args:
            attempts: by request, which attempt's reply it is.
            read: those that are needed no more; they and their reply keys are deleted first.
        """
        discard: list[Command] = []
        if read:
            discard = [("UNLINK", *self._large_replies(read), *self._reply_keys(list(read)))]
        fetch: list[Command] = [("GET", name) for name in self._large_replies(attempts)]
        buffers = [packed(one) for one in discard + fetch]
        answers = await self._large.exchange(buffers, len(buffers))
        values = [None if isinstance(one, Exception) else one for one in answers[len(discard) :]]
        return dict(zip(attempts, values, strict=True))

    async def discard(self, delivered: Sequence[str]) -> None:
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
        prefix = self._keys.reply_prefix
        return [prefix + request_id for request_id in request_ids]
