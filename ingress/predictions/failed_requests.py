"""Logs which requests were answered with 5xx, so that a request id leads to the reason.

The access log has TorchServe's form, which has no place for a reason.
"""

import asyncio
import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

LOWEST_STATUS = 500
# A server that refuses thousands of requests a second logs a few of them.
MAX_LINES = 5
PERIOD_S = 1.0


class FailedRequests:
    """Logs a few lines a second, and a count of what was left out. Lives on one event loop."""

    def __init__(self, *, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._failed = 0  # in this period

    def note(self, request_id: str, status: int, reason: str, asked: Mapping[str, str]) -> None:
        """Logs this failure.

        Args:
            request_id: as the client has it.
            status: of the answer, from `LOWEST_STATUS` on.
            reason: the word for what went wrong; empty where a handler has chosen the status.
            asked: what was asked for, in words without blanks or line breaks.
        """
        if self._failed == 0:
            asyncio.get_running_loop().call_later(self._period_s, self._end_period)
        self._failed += 1
        if self._failed > MAX_LINES:
            return
        words = " ".join(f"{name}={word}" for name, word in asked.items())
        log.warning(
            "failed request=%s status=%d reason=%s %s",
            request_id,
            status,
            reason or "handler",
            words,
        )

    def _end_period(self) -> None:
        left_out, self._failed = self._failed - MAX_LINES, 0
        if left_out > 0:
            log.warning("failed requests left_out=%d", left_out)
