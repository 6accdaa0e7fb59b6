"""`python -m workers.control_jobs`: runs control jobs by RQ under a node. Never an inference."""

import contextlib
import logging
import signal
import sys
import threading
import time
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
from batching.store.client_types import Client
from batching.store.clients import connect, for_rq, store_url
from batching.store.redis_errors import AWAY, UNHEARD, OutageLog, RedisError
from batching.store.registry.control_queue import (
    INSPECT_ARCHIVE,
    JOB_BEAT_S,
    QUEUE_NAME,
    wrap_error,
)
from batching.store.registry.registry import Registry
from workers.archives import fetch
from workers.archives import model_archive as archive
from workers.archives.download_notes import may_share_a_file, was_downloaded
from workers.archives.model_files import work_dir_of

log = logging.getLogger("workers.control_jobs")

# RQ blocks for a job for WORKER_TTL_S - 15 s, and waits for the answer for 10 s more at most. After
# RQ_SOCKET_TIMEOUT_S it gives up a server that is frozen, or was replaced.
WORKER_TTL_S = 20
CLOCKS_DIFFER_S = 86_400
RQ_SOCKET_TIMEOUT_S = 15.0
RETRY_S = 0.5
AGAIN_S = 1.0


class ControlJob(Job):
    """A job of ours, or one that fails.

    RQ imports and calls any function that a job's record names, `os.system` too, and its callbacks
    likewise; its webhooks have RQ (2.12 and later) send requests to any address. A client that can
    write to Redis must not run code here, nor reach addresses that only this machine can.
    """

    beat_s = JOB_BEAT_S
    # Whatever the record names.
    success_callback = failure_callback = stopped_callback = None

    @property
    def func(self) -> Callable[..., Any]:
        if self.func_name != INSPECT_ARCHIVE:
            raise PermissionError(f"no control job: {self.func_name!r}")
        return inspect_archive

    def perform(self) -> Any:
        """Runs the job; beats meanwhile, so that the ingress notices when this process has ended.

        RQ would beat with a fork only.
        """
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
                    self.heartbeat(datetime.now(UTC), WORKER_TTL_S)

    @property
    def webhooks(self) -> list[Any]:
        return []

    @webhooks.setter
    def webhooks(self, value: list[Any]) -> None:
        """Ignores the webhooks that RQ reads in the record."""


class ControlWorker(SimpleWorker):
    """Runs jobs in this process: they are few, and need no fork."""

    death_penalty_class = TimerDeathPenalty
    max_connection_wait_time = 2.0
    outage: OutageLog
    retry_s: float

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Returns the next job; RQ would end when Redis is silent for a while, or refuses."""
        while True:
            try:
                job_and_queue = super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
            except RedisError as error:
                self.outage.note("dequeue", error)
                time.sleep(self.retry_s)
            else:
                self.outage.over("dequeue")
                return job_and_queue

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Beats for this worker. After an error RQ repeats this until it succeeds."""
        try:
            super().heartbeat(timeout, pipeline)
        except UNHEARD as error:
            self.outage.note("heartbeat", error)
            raise
        if pipeline is None:
            self.outage.over("heartbeat", is_for_all=True)

    def get_heartbeat_ttl(self, job: Job) -> int:
        """Returns for how many seconds other nodes do not take the job for abandoned.

        RQ compares clocks, which differ; the ingress notices by beats when the worker has gone.
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
            settings.model_store,
            allowed_urls=settings.allowed_urls,
            startup_models=settings.load_models,
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
    """Returns whether no registered version needs the file that this URL has in the model store.

    A registration that fails after its download leaves one behind, which is to stop no further try.
    """
    client = connect(store_url(settings))
    try:
        specs = Registry(client).specs()
    finally:
        client.close()
    return not any(may_share_a_file(url, spec.model_url) for spec in specs if not spec.load_error)


def make_worker(
    client: Client, outage: OutageLog, *, ttl_s: int = WORKER_TTL_S, retry_s: float = RETRY_S
) -> ControlWorker:
    client = for_rq(client)
    queue = Queue(QUEUE_NAME, connection=client, serializer=JSONSerializer, job_class=ControlJob)
    worker = ControlWorker(
        [queue],
        connection=client,
        serializer=JSONSerializer,
        job_class=ControlJob,
        worker_ttl=ttl_s,
    )
    worker.outage, worker.retry_s = outage, retry_s
    # RQ logs at each try, or with a traceback, what the outage log says once.
    worker.log.addFilter(_is_news)
    return worker


def _is_news(record: logging.LogRecord) -> bool:
    is_of_redis = record.exc_info is not None and isinstance(record.exc_info[1], RedisError)
    return not is_of_redis and "could not connect to Redis" not in str(record.msg)


def main() -> int:
    """Works until SIGTERM; finishes a running job first."""
    settings, _ = load_settings()
    configure_logging(settings.log_level)
    logging.getLogger("rq").setLevel(logging.WARNING)
    outage = OutageLog(log, settings.redis_url)
    client = connect(store_url(settings), socket_timeout_s=RQ_SOCKET_TIMEOUT_S)
    while True:
        try:
            make_worker(client, outage).work(logging_level="WARNING")
            return 0
        except RedisError as error:
            # Redis is away, or full: a new process would fare no better, and costs far more.
            outage.note("work", error)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # RQ's own needs a worker at work
            time.sleep(AGAIN_S)


if __name__ == "__main__":
    sys.exit(main())
