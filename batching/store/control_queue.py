"""Control jobs: work for any one node, through RQ. Never an inference.

RQ's default serializer is pickle, which would let anybody who reaches Redis run code; JSON here.
"""

from typing import Any

from rq import Queue
from rq.job import Job
from rq.results import Result
from rq.serializers import JSONSerializer

from batching import errors
from batching.model_spec import ArchiveInfo
from batching.store.connection import Client, for_rq
from batching.store.downloads import Download, Downloads
from batching.store.redis_errors import AWAY
from batching.store.refusals import store_unavailable

QUEUE_NAME = "ferry-control"
INSPECT_ARCHIVE = "workers.control_jobs.inspect_archive"
RESULT_TTL_S = 60


class ControlQueue:
    """Enqueues control jobs and waits for what they return."""

    def __init__(self, client: Client) -> None:
        self._downloads = Downloads(client)
        self._queue = Queue(QUEUE_NAME, connection=for_rq(client), serializer=JSONSerializer)

    def inspect_archive(
        self, url: str, *, timeout_s: float, may_be_downloaded: bool = False
    ) -> ArchiveInfo:
        """A node has fetched the archive and verified it. Blocks up to `timeout_s`.

        Args:
            url: as registered.
            timeout_s: for the download, too.
            may_be_downloaded: an archive that was downloaded from this URL before is taken as it
                is; otherwise its being there is an error.

        Raises:
            ServeError: what the node found wrong, word for word.
            RequestTimeout: no node took the job, or it took too long.
        """
        record = self._run(INSPECT_ARCHIVE, url, may_be_downloaded, timeout_s=timeout_s)
        return ArchiveInfo(**record)

    def downloads(self) -> list[Download]:
        """The archives that nodes are downloading now.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        return self._downloads.all()

    def _run(self, function: str, *arguments: Any, timeout_s: float) -> Any:
        try:
            job = self._queue.enqueue(
                function,
                args=arguments,
                job_timeout=int(timeout_s),
                ttl=int(timeout_s),
                result_ttl=RESULT_TTL_S,
                failure_ttl=RESULT_TTL_S,
            )
            result = _latest_result(job, timeout_s)
        except AWAY as error:
            raise store_unavailable() from error
        if result is None:
            raise errors.RequestTimeout(f"No node finished the job within {timeout_s:.0f} s.")
        if result.type is not Result.Type.SUCCESSFUL:
            raise errors.InternalError("A control job failed; see the node's log.")
        return unwrap(result.return_value)


def _latest_result(job: Job, timeout_s: float) -> Result | None:
    # RQ blocks in XREAD; slices stay below the client's socket time-out.
    for _ in range(max(1, int(timeout_s))):
        result = job.latest_result(timeout=1)
        if result is not None:
            return result
    return None


def wrap_error(error: errors.ServeError) -> dict[str, Any]:
    """A JSON object that `unwrap` turns into the same error on the other side."""
    return {"error": type(error).__name__, "message": error.message}


def unwrap(outcome: Any) -> Any:
    """The value of a job's outcome, `{"value": ...}` or `{"error": ..., "message": ...}`.

    Raises:
        ServeError: the error that the job met; an unknown class name becomes InternalError.
    """
    if "error" not in outcome:
        return outcome["value"]
    kind = getattr(errors, str(outcome["error"]), errors.InternalError)
    if not (isinstance(kind, type) and issubclass(kind, errors.ServeError)):
        kind = errors.InternalError
    raise kind(str(outcome["message"]))
