"""Takes events that are due, and tells their receivers."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from batching.store.background_tasks import end_tasks
from batching.store.jobs.job_store import JobStore
from batching.store.jobs.webhook_store import Event, WebhookOutcome, WebhookStore
from batching.store.redis_errors import AWAY, OutageLog
from workers.webhooks.delivery import TRY_S, Delivery
from workers.webhooks.messages import write_message
from workers.webhooks.schedule import after, words_of

POLL_S = 1.0
MOST_AT_ONCE = 50
# A receiver that answers at once may have most of them; one that is slow leaves room for others.
MOST_PER_HOST, MOST_PER_SLOW_HOST = 40, 4
SLOW_S = 1.0
MOST_HOSTS = 1000  # that are remembered as slow
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
        self._hosts: dict[str, _Host] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Looks for events that are due, once a second while there are none."""
        try:
            while True:
                count = await self._take_some()
                if len(self._tasks) >= MOST_AT_ONCE:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                elif not count:
                    await asyncio.sleep(self._poll_s)
        finally:
            await end_tasks(self._tasks)

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
            await self._webhooks.end(event, WebhookOutcome.FAILED)
            return
        receiver = job.webhook.receiver
        name = urlsplit(receiver.url).hostname or ""
        host = self._hosts.setdefault(name, _Host())
        if not host.has_room:
            await self._webhooks.end(event, WebhookOutcome.BUSY, int(host.wait_s * 1000))
            return
        with host.trying():
            message = write_message(event, job, receiver, self._keys)
            heard = await self._delivery.post(receiver.url, message)
        if host.is_forgettable or len(self._hosts) > MOST_HOSTS:
            self._hosts.pop(name, None)
        outcome, again_s = after(heard, event.tries)
        words = words_of(heard)
        if words:
            told = (event.job_id, event.name, name, words, outcome)
            log.warning("webhook job=%s event=%s host=%s: %s, %s", *told)
        await self._webhooks.end(event, outcome, int(again_s * 1000), words)


class _Host:
    """Counts the tries that are under way to one host, and knows how slow it is."""

    def __init__(self) -> None:
        self._began_s: list[float] = []
        self._took_s = 0.0

    @property
    def has_room(self) -> bool:
        """Returns whether one more may be tried."""
        is_slow = max(self._took_s, self._oldest_s) > SLOW_S
        return len(self._began_s) < (MOST_PER_SLOW_HOST if is_slow else MOST_PER_HOST)

    @property
    def wait_s(self) -> float:
        """Returns for how long an event is put back: the slower the host, the longer."""
        return max(POLL_S, self._oldest_s)

    @property
    def is_forgettable(self) -> bool:
        """Returns whether a new one would be the same."""
        return not self._began_s and self._took_s <= SLOW_S

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Counts a try, for the length of a with block."""
        began_s = time.monotonic()
        self._began_s.append(began_s)
        try:
            yield
        finally:
            self._began_s.remove(began_s)
            self._took_s = time.monotonic() - began_s

    @property
    def _oldest_s(self) -> float:
        return time.monotonic() - self._began_s[0] if self._began_s else 0.0
