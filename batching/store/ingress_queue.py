"""Makes the ingress's calls on one version's queue: submit, receive, audit, cancel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.entry import no_version
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
from batching.store.redis_errors import memory_full
from batching.store.scripts.loader import command, ordered_keys, script

RECEIVE_AT_ONCE = 256
CHUNKS_AT_ONCE = 16


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
    NO_RETRY = -7  # no job that can be tried again


_REFUSED_WITH_BODY = frozenset(
    {code for code in SubmitCode if code <= 0 and code is not SubmitCode.NO_MEMORY}
)
_SUBMIT_CODES = {code.value: code for code in SubmitCode}  # calling the enumeration is slow


def refusal(code: SubmitCode, key: VersionKey, retry_after_s: float) -> errors.ServeError:
    """Returns the error for a client whose request was refused with this code.

    Each reason has a text of its own; TorchServe calls all of them "no worker". `retry_after_s` is
    when a full queue has emptied.
    """
    name = key.model_name
    if code is SubmitCode.FULL:
        return errors.QueueFull(
            f'The queue of model "{name}" is full. Try again later, add workers, or raise '
            "job_queue_size.",
            retry_after_s=retry_after_s,
        )
    if code is SubmitCode.NO_WORKER or code is SubmitCode.NO_BEAT:
        return errors.NoWorker(
            f'Model "{name}" has no worker to serve inference request. Please use scale workers '
            "API to add workers.",
            retry_after_s=1.0,
        )
    return memory_full() if code is SubmitCode.NO_MEMORY else no_version(*key)


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
        keys = VersionKeys.of(key)
        self._client = client = at(client, keys.tag)
        self._ingress_id = ingress_id
        self._body_prefix = keys.body_prefix
        self._reply_prefix = keys.reply_prefix
        self._large_reply_prefix = keys.large_reply_prefix
        self._chunk_prefix = keys.chunk_prefix
        self._worker_beats = keys.worker_beats
        self._listener = AsyncHeldConnection(client)
        self._submitter = AsyncHeldConnection(client)
        self._large = AsyncHeldConnection(client, is_for_strings=True)
        self._submit = command("submit", ordered_keys("submit", keys), [ingress_id, dead_after_ms])
        done = keys.done_prefix + ingress_id
        self._pop = ("BLMPOP", block_s, 1, done, "LEFT", "COUNT", RECEIVE_AT_ONCE)
        self._cancel = script(client, "cancel")
        self._cancel_keys = ordered_keys("cancel", keys)
        self._audit = script(client, "audit")
        self._audit_keys = ordered_keys("audit", keys)
        self._audit_limits = (ingress_id, LEASE_TTL_MS, dead_after_ms)

    async def close(self) -> None:
        """Closes its own connections; no call may be under way."""
        for connection in (self._listener, self._submitter, self._large):
            await connection.close()

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitCode]:
        """Submits each request, or refuses it with a code.

        Large bodies leave in one write with the script and before it. It refuses those requests
        whose bodies found no room.
        """
        arguments: list[str | int | bytes] = [max([item.ttl_ms for item in submissions])]
        buffers: list[Buffer] = []
        for item in submissions:
            inline = b"" if item.wire.body else item.wire.head
            rest = rest_of_record(self._ingress_id, item.ttl_ms, item.age_us, inline)
            arguments += (item.request_id, rest)
            if item.wire.body:
                name = self._body_prefix + item.request_id
                buffers += packed_set(name, item.wire, item.ttl_ms + 60_000)
        call = (*self._submit, *arguments)
        if not buffers:
            [numbers] = await self._submitter.call(call)
            return [_SUBMIT_CODES[number] for number in numbers]
        large = [item for item in submissions if item.wire.body]
        *stored, answer = await self._submitter.exchange([*buffers, packed(call)], len(large) + 1)
        for outcome in stored:
            if isinstance(outcome, Exception) and not isinstance(outcome, OutOfMemoryError):
                raise outcome
        if isinstance(answer, OutOfMemoryError):
            # The bodies left no room for the script. Without them it may take the small ones.
            await self._drop_bodies(large)
        if isinstance(answer, Exception):  # or it did not know the script
            [answer] = await self._submitter.call(call)
        codes = [_SUBMIT_CODES[number] for number in answer]
        outcomes = zip(submissions, codes, strict=True)
        refused = [item for item, code in outcomes if item.wire.body and code in _REFUSED_WITH_BODY]
        await self._drop_bodies(refused)
        return codes

    async def _drop_bodies(self, large: Sequence[Submission]) -> None:
        if large:
            await self._client.unlink(*[self._body_prefix + item.request_id for item in large])

    async def receive(self, delivered: Sequence[str]) -> dict[str, bytes | None]:
        """Deletes the reply keys of `delivered`; returns the values of those that have come since.

        Blocks up to `block_s`; empty when nothing came. One caller at a time.
        """
        discard: list[Command] = [("UNLINK", *self._reply_keys(delivered))] if delivered else []
        answer = (await self._listener.call(*discard, self._pop))[-1]
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
        """Returns the values of large replies' own keys; both mappings: request id -> attempt.

        Those that were `read` are deleted first, together with their reply keys.
        """
        commands: list[Command] = [("GET", name) for name in self._large_replies(attempts)]
        if read:
            names = [*self._large_replies(read), *self._reply_keys(list(read))]
            commands.insert(0, ("UNLINK", *names))
        answers = await self._large.exchange([packed(one) for one in commands], len(commands))
        values = answers[1 if read else 0 :]
        return {
            request_id: None if isinstance(value, Exception) else value
            for request_id, value in zip(attempts, values, strict=True)
        }

    async def discard(self, delivered: Sequence[str]) -> None:
        await self._client.unlink(*self._reply_keys(delivered))

    async def read_chunks(self, request_id: str, taken: int) -> list[bytes]:
        """Deletes the first `taken` pieces of an answer; returns the oldest of the others."""
        name = self._chunk_prefix + request_id
        async with self._client.pipeline(transaction=False) as pipe:
            if taken:
                pipe.ltrim(name, taken, -1)
            pipe.lrange(name, 0, CHUNKS_AT_ONCE - 1)
            return (await pipe.execute())[-1]  # type: ignore[no-any-return]

    async def discard_chunks(self, request_id: str) -> None:
        await self._client.unlink(self._chunk_prefix + request_id)

    async def cancel(self, request_ids: Sequence[str]) -> list[CancelCode]:
        """Takes these requests out of the queue, unless they have been answered already."""
        return [CancelCode(code) for code in await self._cancel(self._cancel_keys, request_ids)]

    async def audit(self, request_ids: Sequence[str]) -> list[AuditCode]:
        """Tells Redis that this ingress is alive; returns where these requests are."""
        codes = await self._audit(self._audit_keys, [*self._audit_limits, *request_ids])
        return [AuditCode(code) for code in codes]

    async def worker_ids(self) -> list[bytes]:
        """Returns the version's workers, and those whose death nobody has noticed yet."""
        worker_ids: Any = await self._client.zrange(self._worker_beats, 0, -1)
        return worker_ids  # type: ignore[no-any-return]

    def _large_replies(self, attempts: Mapping[str, str]) -> list[str]:
        prefix = self._large_reply_prefix
        return [f"{prefix}{request_id}:{attempt}" for request_id, attempt in attempts.items()]

    def _reply_keys(self, request_ids: Sequence[str]) -> list[str]:
        prefix = self._reply_prefix
        return [prefix + request_id for request_id in request_ids]
