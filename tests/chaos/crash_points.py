"""A worker's turn in a process of its own that ends at a named point, as by SIGKILL.

Usage: python -m tests.chaos.crash_points REDIS_URL WORKER_ID POINT
"""

import os
import sys

from batching.protocol import Batch
from batching.store.clients import connect
from batching.store.worker_queue import WorkerQueue
from tests.support import DEAD_AFTER_MS, KEY, items_of, make_reply

POINTS = ("before claim", "after claim", "after reply")
EXIT_CRASHED = 9


def run(url: str, worker_id: str, point: str) -> None:
    """Claims and replies, and does not live past the point."""

    def reach(here: str) -> None:
        if here == point:
            os._exit(EXIT_CRASHED)

    queue = WorkerQueue(connect(url), KEY, worker_id, DEAD_AFTER_MS)
    reach("before claim")
    batch = queue.claim(8, 0.0)
    assert isinstance(batch, Batch)
    reach("after claim")
    items = items_of(batch)
    queue.reply(items, [make_reply(f"first {item.request_id}") for item in items])
    reach("after reply")


if __name__ == "__main__":
    run(*sys.argv[1:])
