"""Tells `ferry up` that a node or an ingress is ready.

The child finds the number of an open descriptor in `FERRY_READY_FD` and writes lines to it: one
JSON object for each startup model that failed, then `ready`. A part that is started again after it
died has none. `FERRY_LAUNCH` says how it was started.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum

READY_VARIABLE = "FERRY_READY_FD"
LAUNCH_VARIABLE = "FERRY_LAUNCH"
READY_LINE = "ready"


class Launch(StrEnum):
    """Says how this process was started.

    AWAITED: by an operator with `ferry up`. AGAIN: by the same parent, after the one before it
    died. ALONE: by `ferry ingress` or `ferry node`, which a container or systemd may have started
    again.
    """

    AWAITED = "awaited"
    AGAIN = "again"
    ALONE = "alone"


def launch() -> Launch:
    """Returns how this process was started."""
    return Launch(os.environ.get(LAUNCH_VARIABLE, Launch.ALONE))


def notify_ready(failures: Iterable[Mapping[str, str]] = ()) -> None:
    """Reports readiness through the descriptor in FERRY_READY_FD, if there is one; only once."""
    number = os.environ.pop(READY_VARIABLE, "")
    if not number.isdigit():
        return
    lines = [*(json.dumps(failure) for failure in failures), READY_LINE]
    # The reader may have given up; serving does not depend on it.
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines).encode())
