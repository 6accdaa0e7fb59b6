"""Sends control jobs, which are work for any one node, through RQ. Never an inference.

RQ's default serializer is pickle, by which anyone who reaches Redis could run code; ours is JSON.
"""

import logging
import time
from typing import Any

import msgspec
from rq import Queue
from rq.job import Job, JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from batching import errors
from batching.models.spec import ArchiveInfo
from batching.store import keys
from batching.store.clients import for_rq
from batching.store.held_connections import Client
from batching.store.redis_errors import AWAY, FORBIDDEN, store_unavailable

INSPECT_ARCHIVE = "workers.control_jobs.inspect_archive"
RESULT_TTL_S = 60

# A job's worker beats once in JOB_BEAT_S. After ten missing beats it is gone, and does not just
# wait for its disk; then another node begins.
JOB_BEAT_S = 1.0
LOST_AFTER_S = 10.0
RETRY_S = 0.2

_WAITS = b"waits"

log = logging.getLogger(__name__)


class _JobLost(Exception):
    """Says that the job's node has gone or could not report, or that Redis forgot the job."""


class ControlQueue:
    """Enqueues control jobs and waits for their results."""

    def __init__(self, client: Client, *, lost_after_s: float = LOST_AFTER_S) -> None:
        self._lost_after_s = lost_after_s
        self._client = client
        self._queue = Queue(
            keys.CONTROL_QUEUE, connection=for_rq(client), serializer=JSONSerializer
        )

    def inspect_archive(
        self, url: str, *, timeout_s: float, may_be_downloaded: bool = False
    ) -> ArchiveInfo:
        """Lets a node fetch and verify the archive. Blocks up to `timeout_s`.

        `may_be_downloaded`: an earlier download of the archive is no error.

        Raises:
            ServeError: the node's own error.
            RequestTimeout: no node took the job, or it took too long.
            WorkerDied: the node that had the job went away, and so did a second one.
        """
        deadline_s = time.monotonic() + timeout_s
        for is_second in (False, True):
            left_s = deadline_s - time.monotonic()
            # The first node's download may be in a store that the second one shares.
            known = may_be_downloaded or is_second
            try:
                record = self._run(url, is_downloaded=known, timeout_s=left_s)
                return msgspec.convert(record, ArchiveInfo)
            except _JobLost:
                log.warning("lost control job url=%s: its node has gone, or Redis forgot it", url)
        # If the archive ends nodes, a third try would end one more.
        raise errors.WorkerDied(
            f"Two nodes ended while they inspected the archive: {url}. Their logs may say why."
        )

    def _run(self, url: str, *, is_downloaded: bool, timeout_s: float) -> Any:
        whole_s = max(1, int(timeout_s))
        try:
            job = self._queue.enqueue(
                INSPECT_ARCHIVE,
                args=(url, is_downloaded),
                job_timeout=whole_s,
                ttl=whole_s,
                result_ttl=RESULT_TTL_S,
                failure_ttl=RESULT_TTL_S,
            )
            self._client.publish(keys.CHANGES, keys.CONTROL_QUEUE)
            result = self._result(job, timeout_s)
        except AWAY as error:
            raise store_unavailable(error) from error
        if result is None:
            raise errors.RequestTimeout(
                f"No node has fetched and checked the archive within {timeout_s:.0f} s. The nodes' "
                "logs may say why."
            )
        if result.type is not Result.Type.SUCCESSFUL:
            # Our jobs return their errors: the node could not tell Redis how this one ended.
            raise _JobLost
        return unwrap(result.return_value)

    def _result(self, job: Job, timeout_s: float) -> Result | None:
        """Returns the job's result; None after `timeout_s`.

        Raises:
            _JobLost: no node has beaten for the job, or Redis has been away, for `lost_after_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        pulse: bytes | str = b""
        changed_at_s = time.monotonic()
        while time.monotonic() < deadline_s:
            before, has_answer = pulse, False
            try:
                # RQ blocks in XREAD; slices stay below the client's socket time-out.
                if result := job.latest_result(timeout=1):
                    return result
                pulse, has_answer = self._pulse(job), True
            except FORBIDDEN:
                raise  # another node would be refused, too
            except AWAY:
                time.sleep(RETRY_S)
            if has_answer and (pulse != before or pulse == _WAITS):
                changed_at_s = time.monotonic()
            elif time.monotonic() - changed_at_s > self._lost_after_s:
                raise _JobLost
        return None

    def _pulse(self, job: Job) -> bytes | str:
        """Returns a value that changes each second while a node works on the job; _WAITS before.

        Values are only compared with each other: clocks of two machines differ. A job that has left
        the queue counts as begun, which RQ reports a moment later.
        """
        status, beat = job.connection.hmget(job.key, "status", "last_heartbeat")
        is_queued = status == JobStatus.QUEUED.encode() and job.id in self._queue.job_ids
        return _WAITS if is_queued else beat or b""


def wrap_error(error: errors.ServeError) -> dict[str, Any]:
    """Returns a JSON object that `unwrap` turns into the same error on the other side."""
    record = {"error": type(error).__name__, "message": error.message}
    return record | ({"operators_text": text} if (text := error.operators_text) else {})


def unwrap(outcome: Any) -> Any:
    """Returns the value of a job's outcome, `{"value": ...}`, or raises its error.

    An unknown class name becomes InternalError.
    """
    if "error" not in outcome:
        return outcome["value"]
    kind = getattr(errors, str(outcome["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.ServeError)):
        kind = errors.InternalError
    error = kind(str(outcome["message"]))
    error.operators_text = str(outcome.get("operators_text", ""))
    raise error
