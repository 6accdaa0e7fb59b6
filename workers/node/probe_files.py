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


class ProbeFiles:
    def __init__(
        self, folder: Path, is_ready: Callable[[], bool], *, touch_s: float = TOUCH_S
    ) -> None:
        self._folder = folder
        self._is_ready = is_ready
        self._touch_s = touch_s
        self._complaint = ""

    async def run(self) -> None:
        """Writes until cancelled; removes the files of an earlier node first, and its own last."""
        self._remove()
        try:
            while True:
                self._write()
                await asyncio.sleep(self._touch_s)
        finally:
            self._remove()

    def _write(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / ALIVE).touch()
            if self._is_ready():
                (self._folder / READY).touch()
            else:
                (self._folder / READY).unlink(missing_ok=True)
        except OSError as error:
            # Work goes on; probes see an old file.
            self._complain(error)
        else:
            self._complaint = ""

    def _remove(self) -> None:
        for name in (ALIVE, READY):
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Logs each failure once: a full disk stays full for long."""
        words = error.strerror or str(error)
        if words != self._complaint:
            log.warning("probe_dir=%s: %s", self._folder, words)
        self._complaint = words
