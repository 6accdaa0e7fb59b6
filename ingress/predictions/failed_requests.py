"""Writes which requests were answered with 5xx, so that whoever has an id finds out why.

The access log has TorchServe's form, in which there is no place for it.
"""

import asyncio
import logging
from urllib.parse import quote

from batching.models.spec import VersionKey

log = logging.getLogger(__name__)

LOWEST_STATUS = 500
# A server that refuses thousands a second says so with a few.
MAX_LINES = 5
PERIOD_S = 1.0


class FailedRequests:
    """A few lines a second, and a count of what was left out. Lives on one event loop."""

    def __init__(self) -> None:
        self._failed = 0  # in this period

    def note(self, request_id: str, key: VersionKey | None, status: int, reason: str) -> None:
        """Logs this prediction if its status is a failure.

        Args:
            request_id: as the client has it.
            key: of the version, if there is such a one.
            status: of the answer.
            reason: the word for what went wrong; empty where a handler has chosen the status.
        """
        if status < LOWEST_STATUS or not self._has_line():
            return
        name, version = key or ("unknown", "unknown")
        log.warning(
            "failed request=%s status=%d reason=%s model=%s version=%s",
            request_id,
            status,
            reason or "handler",
            name,
            version,
        )

    def note_other(self, request_id: str, asked: tuple[str, str], status: int, reason: str) -> None:
        """Logs this request, which is not a prediction, if its status is a failure.

        Args:
            request_id: as the client has it.
            asked: method and path.
            status: of the answer.
            reason: the word for what went wrong.
        """
        if status < LOWEST_STATUS or not self._has_line():
            return
        method, path = asked
        log.warning(
            "failed request=%s status=%d reason=%s method=%s path=%s",
            request_id,
            status,
            reason,
            method,
            quote(path),
        )

    def _has_line(self) -> bool:
        if self._failed == 0:
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period)
        self._failed += 1
        return self._failed <= MAX_LINES

    def _end_period(self) -> None:
        left_out, self._failed = self._failed - MAX_LINES, 0
        if left_out > 0:
            log.warning("failed requests left_out=%d", left_out)
