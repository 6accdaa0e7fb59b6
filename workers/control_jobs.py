"""`python -m workers.control_jobs`: runs the control jobs that wait, by RQ. Never an inference.

A node starts it when a job waits, and it ends when none has come for a while. It is a process of
its own, so that no archive can hurt the node.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty

from batching.errors import InternalError, ServeError
from batching.process.logs import configure_logging
from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from batching.store.clients import connect, for_rq, store_url
from batching.store.held_connections import Client
from batching.store.keys import CONTROL_QUEUE
from batching.store.redis_errors import AWAY, RedisError
from batching.store.registry.control_queue import INSPECT_ARCHIVE, JOB_BEAT_S, wrap_error
from batching.store.registry.registry import Registry
from workers.archives import fetch
from workers.archives import model_archive as archive
from workers.archives.fetch import may_share_a_file, was_downloaded
from workers.archives.staging import work_dir_of

log = logging.getLogger("workers.control_jobs")

IDLE_S = 10
CLOCKS_DIFFER_S = 86_400
# RQ blocks for a job for IDLE_S, and waits for the answer for 10 s more at most.
RQ_SOCKET_TIMEOUT_S = IDLE_S + 10.0


class ControlJob(Job):
    """Runs a job of ours, and fails any other.

    RQ imports and calls any function that a job's record names, `os.system` too, and its callbacks
    likewise; by its webhooks RQ (2.12 and later) sends requests to any address. A client that can
    write to Redis must not run code here, nor reach addresses that only this machine can.
    """

    beat_s = JOB_BEAT_S
    # Whatever the record names.
    success_callback = failure_callback = stopped_callback = None
    webhooks = property(lambda _: [], lambda _job, _value: None)

    @property
    def func(self) -> Callable[..., Any]:
        if self.func_name != INSPECT_ARCHIVE:
            raise PermissionError(f"no control job: {self.func_name!r}")
        return inspect_archive

    def perform(self) -> Any:
        """Runs the job, and beats meanwhile, as RQ does only in workers that fork."""
        is_over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(is_over,), daemon=True)
        beating.start()
        try:
            return super().perform()
        finally:
            is_over.set()
            beating.join()

    def _beat(self, is_over: threading.Event) -> None:
        while not is_over.wait(self.beat_s):
            with contextlib.suppress(*AWAY):
                if self.connection.exists(self.key):
                    self.heartbeat(datetime.now(UTC), IDLE_S)


class ControlWorker(SimpleWorker):
    """Runs jobs in this process: they are few, and need no fork."""

    death_penalty_class = TimerDeathPenalty

    def get_heartbeat_ttl(self, job: Job) -> int:
        """Returns after how many seconds other nodes take the job for abandoned.

        RQ compares the clocks of several machines, hence the margin; the ingress notices a dead
        worker by its beats.
        """
        return int(super().get_heartbeat_ttl(job)) + CLOCKS_DIFFER_S

    def subscribe(self) -> None:
        """Does nothing: a client that can write to Redis must not command this worker."""


def inspect_archive(url: str, may_be_downloaded: bool = False) -> dict[str, Any]:
    """Returns the verified archive's description, or the error that a client should see."""
    settings, _ = load_settings()
    try:
        path = fetch.locate_archive(
            url,
            settings,
            is_registered=may_be_downloaded and was_downloaded(url, settings.model_store),
            is_unused=lambda: _is_unused(url, settings),
        )
        # Unpacked at once: this node will need the files, and large archives take seconds to read.
        return {"value": asdict(archive.inspect_archive(path, url, work_dir_of(settings)))}
    except ServeError as error:
        return wrap_error(error)
    except Exception:
        log.exception("inspecting url=%s failed", url)
        return wrap_error(InternalError(f"Failed to save model: {url}"))


def _is_unused(url: str, settings: Settings) -> bool:
    """Returns whether no registered version needs the file that this URL has in the model store."""
    with connect(store_url(settings)) as client:
        specs = Registry(client).specs()
    return not any(may_share_a_file(url, spec.model_url) for spec in specs if not spec.load_error)


def make_worker(client: Client) -> ControlWorker:
    shared: dict[str, Any] = {
        "connection": for_rq(client),
        "serializer": JSONSerializer,
        "job_class": ControlJob,
    }
    return ControlWorker([Queue(CONTROL_QUEUE, **shared)], **shared)


def main() -> int:
    """Works until no job has come for IDLE_S, or SIGTERM; finishes a running job first."""
    settings, _ = load_settings()
    configure_logging(settings.log_level)
    client = connect(store_url(settings), socket_timeout_s=RQ_SOCKET_TIMEOUT_S)
    try:
        make_worker(client).work(max_idle_time=IDLE_S, logging_level="WARNING")
    except RedisError as error:
        log.warning("no control jobs for now: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
