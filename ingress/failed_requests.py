"""Writes which predictions were answered with 5xx, so that whoever has an id finds out why.

The access log has TorchServe's form, in which there is no place for it.
"""

import logging
import time
from collections.abc import Callable

from batching.model_spec import VersionKey

log = logging.getLogger(__name__)

LOWEST_STATUS = 500
# A server that refuses thousands a second says so with a few.
MAX_LINES = 5
PERIOD_S = 1.0


class FailedRequests:
    """A few lines a second, and a count of what was left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._period_end_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def note(self, request_id: str, key: VersionKey | None, status: int, reason: str) -> None:
        """The log names this request if its status is one of a failure.

        Args:
            request_id: as the client has it.
            key: of the version, if there is such a one.
            status: of the answer.
            reason: the word for what went wrong; empty where a handler has chosen the status.
        """
        if status < LOWEST_STATUS:
            return
        now_s = self._clock()
        if now_s >= self._period_end_s:
            self._period_end_s, self._lines = now_s + PERIOD_S, 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        name, version = key or ("unknown", "unknown")
        log.warning(
            "failed request=%s status=%d reason=%s model=%s version=%s%s",
            request_id,
            status,
            reason or "handler",
            name,
            version,
            f" left_out={left_out}" if left_out else "",
        )
