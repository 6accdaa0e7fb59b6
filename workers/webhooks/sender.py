"""Takes events that are due, and tells their receivers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from batching.store.jobs.job_store import JobStore
from batching.store.jobs.webhook_records import Outcome
from batching.store.jobs.webhook_store import Event, WebhookStore
from batching.store.outage_log import OutageLog
from batching.store.redis_errors import AWAY
from workers.webhooks.delivery import TRY_S, Delivery
from workers.webhooks.messages import write_message
from workers.webhooks.schedule import after, words_of

POLL_S = 1.0
MOST_AT_ONCE = 50
# One receiver that hangs is to leave room for the others.
MOST_PER_HOST = 4
BUSY_S = 1.0
# Longer than a try and what is around it.
LEASE_S = 4 * TRY_S

log = logging.getLogger(__name__)


class WebhookSender:
    """Runs until it is cancelled; what was under way then is due again after LEASE_S."""

    def __init__(
        self,
        webhooks: WebhookStore,
        jobs: JobStore,
        delivery: Delivery,
        keys: Sequence[bytes],
        outage: OutageLog,
        *,
        poll_s: float = POLL_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self._webhooks = webhooks
        self._jobs = jobs
        self._delivery = delivery
        self._keys = keys
        self._outage = outage
        self._poll_s = poll_s
        self._lease_ms = int(lease_s * 1000)
        self._hosts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Looks for events that are due, once a second while there are none."""
        try:
            while True:
                count = await self._take_some()
                if not count or len(self._tasks) >= MOST_AT_ONCE:
                    await asyncio.sleep(self._poll_s)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _take_some(self) -> int:
        try:
            events = await self._webhooks.claim(MOST_AT_ONCE - len(self._tasks), self._lease_ms)
        except AWAY as error:
            self._outage.note("webhooks", error)
            return 0
        self._outage.over("webhooks")
        for event in events:
            task = asyncio.create_task(self._tell_safely(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(events)

    async def _tell_safely(self, event: Event) -> None:
        try:
            await self._tell(event)
        except AWAY as error:
            self._outage.note("webhooks", error)
        except Exception:
            # One event must not stop the others; after its lease it is tried again.
            log.exception("webhook not sent job=%s event=%s", event.job_id, event.name)

    async def _tell(self, event: Event) -> None:
        job = await self._jobs.find(event.job_id)
        if job is None or job.webhook is None:
            await self._webhooks.end(event, Outcome.FAILED)
            return
        receiver = job.webhook.receiver
        host = urlsplit(receiver.url).hostname or ""
        if self._hosts[host] >= MOST_PER_HOST:
            await self._webhooks.end(event, Outcome.BUSY, int(BUSY_S * 1000))
            return
        self._hosts[host] += 1
        try:
            heard = await self._delivery.post(
                receiver.url, write_message(event, job, receiver, self._keys)
            )
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        outcome, again_s = after(heard, event.tries)
        words = words_of(heard)
        if words:
            told = (event.job_id, event.name, host, words, outcome)
            log.warning("webhook job=%s event=%s host=%s: %s, %s", *told)
        await self._webhooks.end(event, outcome, int(again_s * 1000), words)
