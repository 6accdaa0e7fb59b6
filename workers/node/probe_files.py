"""Files that tell an orchestrator how a node is: `alive` and `ready` in one folder.

A node listens on no port, so its probes are commands that look at these. `alive` is touched every
second for as long as the node's loop turns, whether or not Redis answers: restarting nodes does not
bring Redis back, and costs their loaded models. `ready` is there while every worker that can be
counted on serves, so that a rolling update waits for the models of the new node. A worker that
keeps failing is not waited for: one broken model must not stop the update of all others.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

TOUCH_S = 1.0
ALIVE, READY = "alive", "ready"


async def keep_probe_files(
    folder: Path, is_ready: Callable[[], bool], *, touch_s: float = TOUCH_S
) -> None:
    """Writes until cancelled; removes the files of an earlier node first, and its own last."""
    complaint = ""

    def write(*, is_alive: bool = True) -> None:
        nonlocal complaint
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, is_there in ((ALIVE, is_alive), (READY, is_alive and is_ready())):
                if is_there:
                    (folder / name).touch()
                else:
                    (folder / name).unlink(missing_ok=True)
            complaint = ""
        except OSError as error:
            # Work goes on; probes see an old file. Said once: a full disk stays full for long.
            if (reason := error.strerror or str(error)) != complaint:
                log.warning("probe_dir=%s: %s", folder, reason)
            complaint = reason

    write(is_alive=False)
    try:
        while True:
            write()
            await asyncio.sleep(touch_s)
    finally:
        write(is_alive=False)
