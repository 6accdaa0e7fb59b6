"""Has Redis write an append-only file from the first job on.

Requests need no file: their ingress submits them again. Written down all the same, each body costs
its way to the disk, so a server that is asked for no job has none.
"""

import asyncio
import logging
import time

from redis.exceptions import ResponseError

from batching.store.client_types import AsyncClient

# What a Redis without jobs has in memory is written at once.
PATIENCE_S = 2.0
_POLL_S = 0.01

log = logging.getLogger(__name__)


async def write_file(client: AsyncClient, patience_s: float = PATIENCE_S) -> None:
    """Turns the file on, and waits until it holds all that is in memory.

    Args:
        client: of the server, which is not one of a cluster.
        patience_s: after so long it returns all the same: jobs go on, and say how durable they are.
    """
    ends_s = time.monotonic() + patience_s
    try:
        await client.config_set("appendonly", "yes")
    except ResponseError as error:
        log.warning("jobs are not written down: %s", error)
        return
    while time.monotonic() < ends_s:
        info = await client.info("persistence")
        if not (info.get("aof_rewrite_in_progress") or info.get("aof_rewrite_scheduled")):
            return
        await asyncio.sleep(_POLL_S)
