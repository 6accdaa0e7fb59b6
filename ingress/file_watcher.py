"""Logs that no more file can be opened, which the event loop does not.

libuv then accepts each new connection and closes it, so that its client does not wait. Without this
line an operator would see clients fail and no reason.
"""

import asyncio
import logging
import os
import resource

from batching.process.retries import Reminder

log = logging.getLogger(__name__)

LOOK_S = 1.0


async def watch_open_files() -> None:
    """Tries to open a file, now and then, until cancelled."""
    reminder = Reminder()
    while True:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if reminder.is_due(str(error)):
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                words = "no file can be opened limit=%d: %s; new connections are closed at once"
                log.warning(words, limit, error.strerror)
        await asyncio.sleep(LOOK_S)
