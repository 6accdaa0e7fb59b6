"""How a node or an ingress tells `ferry up` that it has joined in.

The child finds the number of an open descriptor in `FERRY_READY_FD` and writes lines to it: one
JSON object for each startup model that failed, then `ready`.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

READY_VARIABLE = "FERRY_READY_FD"
READY_LINE = "ready"


def notify_ready(failures: Iterable[Mapping[str, str]] = ()) -> None:
    """Whoever started this process with a descriptor in FERRY_READY_FD knows; once at most."""
    number = os.environ.pop(READY_VARIABLE, "")
    if not number.isdigit():
        return
    lines = [*(json.dumps(failure) for failure in failures), READY_LINE]
    # The reader may have given up; serving does not depend on it.
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines).encode())
