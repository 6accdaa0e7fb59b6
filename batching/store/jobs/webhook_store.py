"""Claims due events of webhooks, and notes how their tries ended."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batching.models.spec import VersionKey
from batching.store import keys
from batching.store.clients import at
from batching.store.held_connections import AsyncClient
from batching.store.jobs.job_records import read_version
from batching.store.keys import VersionKeys
from batching.store.scripts.loader import ordered_keys, script

MOST_ERROR_CHARS = 200


class WebhookOutcome(StrEnum):
    """Says how a try ended; after the last two outcomes the event is due again."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    PENDING = "pending"
    BUSY = "busy"  # no try was made: too many are under way to this receiver


@dataclass(frozen=True, slots=True)
class Event:
    """Holds an event for a receiver: a job's start or its final status.

    `submitted_ms` tells the ends of a retried job apart.
    """

    key: VersionKey
    job_id: str
    name: str
    tries: int
    submitted_ms: int


class WebhookStore:
    """Calls the scripts; raises redis' own errors. Lives on one event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._scripts = {verb: script(client, verb) for verb in ("claim_webhooks", "end_webhook")}

    async def claim(self, count: int, lease_ms: int) -> list[Event]:
        """Returns up to `count` events that are due; for `lease_ms` they are this sender's."""
        events: list[Event] = []
        versions = await self._versions()
        random.shuffle(versions)  # many events of one version must not hold up the others
        for key in versions:
            if len(events) == count:
                break
            answer = await self._run("claim_webhooks", key, [count - len(events), lease_ms])
            values = iter([str(value, "utf-8", "replace") for value in answer])
            quads = zip(values, values, values, values, strict=True)
            for job_id, name, tries, submitted_ms in quads:
                events.append(Event(key, job_id, name, int(tries), int(submitted_ms)))
        return events

    async def end(
        self, event: Event, outcome: WebhookOutcome, again_ms: int = 0, error: str = ""
    ) -> None:
        """Notes how a try ended, and after how long to try again."""
        arguments = [event.job_id, event.name, outcome, again_ms, error[:MOST_ERROR_CHARS]]
        await self._run("end_webhook", event.key, arguments)

    async def _versions(self) -> list[VersionKey]:
        """Returns the versions that have jobs with webhooks, including unregistered ones."""
        home = at(self._client, keys.HOME)
        seconds, _ = await home.time()
        names: list[Any] = await home.zrangebyscore(keys.WEBHOOK_VERSIONS, seconds * 1000, "+inf")
        if names:
            await home.zremrangebyscore(keys.WEBHOOK_VERSIONS, "-inf", f"({seconds * 1000}")
        return [key for name in names if (key := read_version(name)) is not None]

    async def _run(self, verb: str, key: VersionKey, arguments: list[Any]) -> Any:
        version_keys = VersionKeys.of(key)
        client = at(self._client, version_keys.tag)
        return await self._scripts[verb](ordered_keys(verb, version_keys), arguments, client=client)


async def note_version(client: AsyncClient, key: VersionKey, whole_ms: int) -> None:
    """Lists this version for senders, for as long as its job may exist."""
    home = at(client, keys.HOME)
    seconds, _ = await home.time()
    async with home.pipeline(transaction=False) as pipe:
        pipe.zadd(keys.WEBHOOK_VERSIONS, {json.dumps([*key]): seconds * 1000 + whole_ms}, gt=True)
        pipe.pttl(keys.WEBHOOK_VERSIONS)
        _, left_ms = await pipe.execute()
    if left_ms < whole_ms:
        await home.pexpire(keys.WEBHOOK_VERSIONS, whole_ms)
