"""Tells receivers on the web what became of their jobs, in a thread of the node (ADR 0025).

Nobody may use it as a proxy into the local network: as for downloads of archives, the host is
resolved once (DNS rebinding waits for a second time), all its addresses must be public, and the
connection goes to one of them.
"""

import asyncio
import base64
import datetime
import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
from standardwebhooks import Webhook

from batching.process.daemon_thread import in_daemon_thread
from batching.settings.settings import Settings
from batching.store.background_tasks import end_tasks
from batching.store.clients import connect_async, store_url
from batching.store.jobs.job_records import Job, job_document, small_reply
from batching.store.jobs.job_store import Event, JobStore, WebhookOutcome, WebhookStore
from batching.store.redis_errors import AWAY, OutageLog
from batching.webhooks import DEFAULT_PORTS, ReceiverRules, read_secrets

log = logging.getLogger(__name__)

POLL_S = 1.0
TRY_S = 15.0
# Longer than a try with its calls to Redis.
LEASE_S = 4 * TRY_S
MOST_AT_ONCE, MOST_PER_HOST = 50, 20  # a receiver that hangs leaves room for others
MOST_RESULT_BYTES = 16_384
# Waits after the tries: 5 s, 5 and 30 min, 2, 5, 10, 14, 20 and 24 h. The job may be forgotten
# before the last one, and then nobody is told.
WAITS_S = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
# Receivers that fail together are not to be asked together.
JITTER = 0.1
_GONE = 410

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def send_webhooks(settings: Settings) -> None:
    """Sends in a thread: neither TLS nor a slow receiver costs the node a beat.

    The thread outlives a cancelled call, and ends with the process: what it was at is told again.
    """
    # It logs each request's URL, which may be a secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)

    async def send() -> None:
        rules, ca_file = settings.receiver_rules(), settings.webhook_ca_file
        assert rules is not None
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        client, delivery = connect_async(store_url(settings)), Delivery(rules, context)
        webhooks, jobs = WebhookStore(client), JobStore(client, settings.job_backlog)
        keys, outage = read_secrets(settings.webhook_secrets), OutageLog(log, settings.redis_url)
        try:
            await WebhookSender(webhooks, jobs, delivery, keys, outage).run()
        finally:  # after an error, it begins anew
            await delivery.close()
            await client.aclose()

    await in_daemon_thread(lambda: asyncio.run(send()))


class ReceiverAnswer(NamedTuple):
    """Keeps what a receiver answered; without an answer, status 0 and the reason."""

    status: int
    retry_after: str = ""
    error: str = ""

    def outcome(self, tries: int) -> tuple[WebhookOutcome, float]:
        """Returns how this try ended and the seconds until the next, after `tries` earlier ones."""
        if 200 <= self.status < 300:  # noqa: PLR2004 - the range is its own name
            return WebhookOutcome.DELIVERED, 0.0
        if self.status == _GONE:
            return WebhookOutcome.GONE, 0.0
        if tries >= len(WAITS_S):
            return WebhookOutcome.FAILED, 0.0
        wait_s = WAITS_S[tries] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
        is_number = self.retry_after.isascii() and self.retry_after.isdigit()
        asked_s = float(self.retry_after[:9]) if is_number else 0.0
        return WebhookOutcome.PENDING, max(wait_s, min(asked_s, WAITS_S[-1]))


@dataclass
class WebhookSender:
    """Claims events that are due, and tells their receivers.

    Runs until it is cancelled; events that were under way are due again after LEASE_S.
    """

    webhooks: WebhookStore
    jobs: JobStore
    delivery: "Delivery"
    keys: Sequence[bytes]
    outage: OutageLog
    poll_s: float = POLL_S
    _tries: Counter[str] = field(default_factory=Counter, init=False)  # under way, by host
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Claims due events, once a second while there are none."""
        try:
            while True:
                events: list[Event] = []
                try:
                    room = MOST_AT_ONCE - len(self._tasks)
                    events = await self.webhooks.claim(room, int(LEASE_S * 1000))
                    self.outage.over("webhooks")
                except AWAY as error:
                    self.outage.note("webhooks", error)
                for event in events:
                    task = asyncio.create_task(self._tell_safely(event))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                if len(self._tasks) >= MOST_AT_ONCE:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                elif not events:
                    await asyncio.sleep(self.poll_s)
        finally:
            await end_tasks(self._tasks)

    async def _tell_safely(self, event: Event) -> None:
        try:
            await self._tell(event)
        except AWAY as error:
            self.outage.note("webhooks", error)
        except Exception:
            # One event must not stop the others; after its lease it is tried again.
            log.exception("webhook not sent job=%s event=%s", event.job_id, event.name)

    async def _tell(self, event: Event) -> None:
        job = await self.jobs.find(event.job_id)
        if job is None or job.webhook is None:
            await self.webhooks.end(event, WebhookOutcome.FAILED)
            return
        url = job.webhook.receiver.url
        host = urlsplit(url).hostname or ""
        if self._tries[host] >= MOST_PER_HOST:
            await self.webhooks.end(event, WebhookOutcome.BUSY, int(POLL_S * 1000))
            return
        self._tries[host] += 1
        try:
            answer = await self.delivery.post(url, *_message(event, job, self.keys))
        finally:
            self._tries[host] -= 1
            self._tries += Counter()  # forgets hosts without tries
        outcome, again_s = answer.outcome(event.tries)
        complaint = ""
        if outcome is not WebhookOutcome.DELIVERED:
            complaint = answer.error or f"status {answer.status}"
            told = (event.job_id, event.name, host, complaint, outcome)
            log.warning("webhook job=%s event=%s host=%s: %s, %s", *told)
        await self.webhooks.end(event, outcome, int(again_s * 1000), complaint)


def _message(event: Event, job: Job, keys: Sequence[bytes]) -> tuple[dict[str, str], bytes]:
    """Returns headers and body; each try has the same message id."""
    assert job.webhook is not None
    moment = datetime.datetime.now(datetime.UTC)  # receivers refuse what is old
    document = job_document(job, job.webhook.receiver.base_url)
    if job.webhook.receiver.is_result_told and (result := _result(job)) is not None:
        document["result"] = result
    timestamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    message = {"type": f"job.{event.name}", "timestamp": timestamp, "data": document}
    body = msgspec.json.encode(message)
    message_id = f"msg_{event.job_id}_{event.name}_{event.submitted_ms}"
    # One of each key, so that keys can be changed.
    signatures = [Webhook(key).sign(message_id, moment, body.decode()) for key in keys]
    headers = {
        "content-type": "application/json",
        "user-agent": "torchferry",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return headers, body


def _result(job: Job) -> dict[str, Any] | None:
    """Returns the job's result if it is small; base64 if it is not UTF-8; None without one."""
    reply = small_reply(job)
    if reply is None or len(reply.body) > MOST_RESULT_BYTES:
        return None
    names = {name.lower(): value for name, value in (reply.headers or {}).items()}
    result: dict[str, Any] = {"status_code": reply.status}
    if content_type := names.get("content-type"):
        result["content_type"] = content_type
    try:
        return result | {"body": bytes(reply.body).decode()}
    except UnicodeDecodeError:
        return result | {"body_b64": base64.b64encode(bytes(reply.body)).decode()}


async def resolve(host: str, port: int) -> list[str]:
    """Returns the host's addresses; raises OSError or UnicodeError if it has none."""
    # The loop's own resolver uses threads that a stopping node would wait for.
    entries = await in_daemon_thread(
        partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class Delivery:
    """Posts to receivers that the rules allow. `resolve` is the network; tests bring their own."""

    def __init__(
        self, rules: ReceiverRules, context: ssl.SSLContext, resolve: Resolve = resolve
    ) -> None:
        self._rules, self._resolve = rules, resolve
        # No proxy from the environment: it would resolve the name once more. No connection is kept:
        # the name may lead elsewhere by the next message.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            verify=context, timeout=TRY_S, trust_env=False, limits=limits
        )
        self.close = self._client.aclose

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        """Tries once, for TRY_S at most."""
        try:
            async with asyncio.timeout(TRY_S):
                return await self._post(url, headers, body)
        except TimeoutError:
            error = f"no answer within {TRY_S:.0f} s"
        except ValueError as refusal:  # UnicodeError too: a name longer than names may be
            error = str(refusal)
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as failure:
            error = f"{type(failure).__name__}: {failure}".rstrip(": ")
        return ReceiverAnswer(0, error=error)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        parts = self._rules.check_url(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        addresses = await self._resolve(host, port)
        self._rules.check_addresses(host, addresses)
        failure = httpx.ConnectError("host does not resolve")
        for address in addresses:
            request = self._client.build_request(
                "POST",
                httpx.URL(url).copy_with(host=address),
                content=body,
                headers={**headers, "host": parts.netloc, "accept-encoding": "identity"},
                # TLS asks for the name, not the address, and checks its certificate.
                extensions={"sni_hostname": host.rstrip(".")},
            )
            try:
                answer = await self._client.send(request, stream=True)
            except httpx.ConnectError as error:
                failure = error
                continue
            await answer.aclose()  # its body is of no use
            return ReceiverAnswer(answer.status_code, answer.headers.get("retry-after", ""))
        raise failure
