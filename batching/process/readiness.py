"""Tells `ferry up` that a node or an ingress is ready.

The child finds the number of an open descriptor in `FERRY_READY_FD` and writes lines to it: one
JSON object for each startup model that failed, then `ready`. For a part that is started again after
it died, the variable is empty: `ferry up` does not wait for it.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from enum import Enum

READY_VARIABLE = "FERRY_READY_FD"
READY_LINE = "ready"


class Launch(Enum):
    """How this process was started."""

    AWAITED = "by `ferry up`, which waits for it"
    AGAIN = "by `ferry up`, after the one before it died"
    ALONE = "by an operator, a container or systemd, for the first time or again"


def launch() -> Launch:
    """Returns how this process was started. Call this before `notify_ready`."""
    number = os.environ.get(READY_VARIABLE)
    if number is None:
        return Launch.ALONE
    return Launch.AWAITED if number else Launch.AGAIN


def notify_ready(failures: Iterable[Mapping[str, str]] = ()) -> None:
    """Reports readiness through the descriptor in FERRY_READY_FD, if there is one; only once."""
    number = os.environ.pop(READY_VARIABLE, "")
    if not number.isdigit():
        return
    lines = [*(json.dumps(failure) for failure in failures), READY_LINE]
    # The reader may have given up; serving does not depend on it.
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines).encode())
