"""The calls about webhooks: which events are due, and what became of telling of them."""

import json
import logging
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batching.models.spec import VersionKey
from batching.store import keys
from batching.store.clients import at
from batching.store.held_connections import AsyncClient
from batching.store.keys import VersionKeys
from batching.store.scripts.loader import ordered_keys, script

log = logging.getLogger(__name__)

MOST_ERROR_CHARS = 200


class WebhookOutcome(StrEnum):
    """Says how a try ended; after the last two the event is due again."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    PENDING = "pending"
    BUSY = "busy"  # it was no try: too many are under way to this receiver


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a receiver is to hear of: a job's start or its final status.

    `submitted_ms` tells a job's ends from each other, if it is tried again.
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
        self._claim = script(client, "claim_webhooks")
        self._end = script(client, "end_webhook")

    async def claim(self, count: int, lease_ms: int) -> list[Event]:
        """Returns up to so many events that are due; for `lease_ms` they are this sender's."""
        found: list[Event] = []
        versions = await self._versions()
        random.shuffle(versions)  # many events of one are not to hide those of the others
        for key in versions:
            if len(found) == count:
                break
            arguments = [count - len(found), lease_ms]
            answer = await self._run(self._claim, key, "claim_webhooks", arguments)
            texts = iter([str(value, "utf-8", "replace") for value in answer])
            for job_id, name, tries, submitted_ms in zip(texts, texts, texts, texts, strict=True):
                found.append(Event(key, job_id, name, int(tries), int(submitted_ms)))
        return found

    async def end(
        self, event: Event, outcome: WebhookOutcome, again_ms: int = 0, error: str = ""
    ) -> None:
        """Notes how a try ended; if it is to be made again, after how long."""
        arguments = [event.job_id, event.name, outcome, again_ms, error[:MOST_ERROR_CHARS]]
        await self._run(self._end, event.key, "end_webhook", arguments)

    async def _versions(self) -> list[VersionKey]:
        """Returns the versions that have jobs with webhooks, unregistered ones among them."""
        home = at(self._client, keys.HOME)
        seconds, micros = await home.time()
        now_ms = seconds * 1000 + micros // 1000
        names: list[Any] = await home.zrangebyscore(keys.WEBHOOK_VERSIONS, now_ms, "+inf")
        if not names:
            return []
        await home.zremrangebyscore(keys.WEBHOOK_VERSIONS, "-inf", f"({now_ms}")
        versions = []
        for name in names:
            try:
                model_name, model_version = json.loads(name)
                versions.append(VersionKey(str(model_name), str(model_version)))
            except (ValueError, TypeError, RecursionError):
                log.error("unreadable version of webhooks: %r", name[:200])
        return versions

    async def _run(self, verb: Any, key: VersionKey, name: str, arguments: list[Any]) -> Any:
        version_keys = VersionKeys.of(key)
        client = at(self._client, version_keys.tag)
        return await verb(ordered_keys(name, version_keys), arguments, client=client)


async def note_version(client: AsyncClient, key: VersionKey, whole_ms: int) -> None:
    """Has senders look at this version, for as long as its job may be there."""
    home = at(client, keys.HOME)
    seconds, _ = await home.time()
    async with home.pipeline(transaction=False) as pipe:
        pipe.zadd(keys.WEBHOOK_VERSIONS, {json.dumps([*key]): seconds * 1000 + whole_ms}, gt=True)
        pipe.pttl(keys.WEBHOOK_VERSIONS)
        _, left_ms = await pipe.execute()
    if left_ms < whole_ms:
        await home.pexpire(keys.WEBHOOK_VERSIONS, whole_ms)
