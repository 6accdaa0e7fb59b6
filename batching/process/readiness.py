"""How a node or an ingress tells `ferry up` that it has joined in.

The child finds the number of an open descriptor in `FERRY_READY_FD` and writes lines to it: one
JSON object for each startup model that failed, then `ready`. A part that is started again, after it
has died, finds the variable empty: nobody waits for it.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from enum import Enum

READY_VARIABLE = "FERRY_READY_FD"
READY_LINE = "ready"


class Launch(Enum):
    """Who has started this process."""

    AWAITED = "by `ferry up`, which waits for it: somebody wants a server now"
    AGAIN = "by `ferry up`, after the one before it died"
    ALONE = "by an operator, a container or systemd; whether for the first time, it cannot know"


def launch() -> Launch:
    """Returns how this process came to be. Ask before `notify_ready`."""
    number = os.environ.get(READY_VARIABLE)
    if number is None:
        return Launch.ALONE
    return Launch.AWAITED if number else Launch.AGAIN


def notify_ready(failures: Iterable[Mapping[str, str]] = ()) -> None:
    """Whoever started this process with a descriptor in FERRY_READY_FD knows; once at most."""
    number = os.environ.pop(READY_VARIABLE, "")
    if not number.isdigit():
        return
    lines = [*(json.dumps(failure) for failure in failures), READY_LINE]
    # The reader may have given up; serving does not depend on it.
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines).encode())
