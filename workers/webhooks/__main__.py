"""`python -m workers.webhooks`: tells receivers of jobs, beside a node or by itself."""

import asyncio
import logging
import signal
import ssl
import sys

from batching.process.logs import configure_logging
from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from batching.store.background_tasks import end_tasks
from batching.store.clients import connect_async, store_url
from batching.store.jobs.job_store import JobStore
from batching.store.jobs.webhook_store import WebhookStore
from batching.store.redis_errors import OutageLog
from batching.webhooks import read_secrets
from workers.webhooks.delivery import Delivery
from workers.webhooks.sender import WebhookSender

log = logging.getLogger("workers.webhooks")


async def send_webhooks(settings: Settings) -> None:
    """Sends until SIGTERM or SIGINT."""
    rules = settings.receiver_rules()
    assert rules is not None
    ca_file = settings.webhook_ca_file
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    client = connect_async(store_url(settings))
    delivery = Delivery(rules, context)
    sender = WebhookSender(
        WebhookStore(client),
        JobStore(client, settings.job_backlog),
        delivery,
        read_secrets(settings.webhook_secrets),
        OutageLog(log, settings.redis_url),
    )
    running = asyncio.create_task(sender.run())
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await end_tasks([running, stopping])
        await delivery.close()
        await client.aclose()


def main() -> int:
    """Returns the exit code: 2 without secrets to sign with."""
    settings, _ = load_settings()
    return run(settings)


def run(settings: Settings) -> int:
    """Sends with these settings; returns the exit code."""
    configure_logging(settings.log_level)
    if not settings.webhook_secrets:
        log.error("webhooks are signed: set webhook_secrets")
        return 2
    # It says each request, whose URL may be a secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(send_webhooks(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
