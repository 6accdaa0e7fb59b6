"""A control worker whose jobs take SECONDS; it prints its process id when it has one.

With less than none, each job is broken off when it is tried for the first time. Its clock is ahead
of others' by AHEAD_S, if given.
"""

import os
import sys
import time

from rq import registry
from rq.utils import current_timestamp

from workers import control_jobs

SECONDS, AHEAD_S = map(float, (*sys.argv[1:], "0")[:2])


def inspect_archive(url, may_be_downloaded=False):
    print(os.getpid(), may_be_downloaded, flush=True)  # noqa: T201
    if SECONDS < 0 and not may_be_downloaded:
        raise ConnectionError("broken off")
    time.sleep(max(0.0, SECONDS))
    description = {
        "url": url,
        "sha256": "0" * 64,
        "model_name": str(os.getpid()),
        "model_version": "1.0",
        "handler": "h.py",
        "runtime": "python",
        "manifest": {},
        "config": {},
        "colour": "green",  # as a later version might say
    }
    return {"value": description}


if __name__ == "__main__":
    control_jobs.inspect_archive = inspect_archive
    registry.current_timestamp = lambda: current_timestamp() + AHEAD_S
    sys.exit(control_jobs.main())
