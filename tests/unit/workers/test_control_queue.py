"""A control job whose node goes away while it is at it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batching.errors import RequestTimeout, ServeError, WorkerDied
from batching.store.registry.control_queue import ControlQueue
from tests.support import eventually

pytestmark = pytest.mark.slow  # processes that import RQ

SCRIPT = Path(__file__).parent / "control_worker.py"
LOST_AFTER_S = 2.5


class Inspection(threading.Thread):
    """An ingress that waits for an archive's description."""

    def __init__(self, client, timeout_s=60.0):
        super().__init__(daemon=True)
        self.outcome = None
        self._queue = ControlQueue(client, lost_after_s=LOST_AFTER_S)
        self._timeout_s = timeout_s
        self.start()

    def run(self):
        try:
            self.outcome = self._queue.inspect_archive("m.mar", timeout_s=self._timeout_s)
        except ServeError as error:
            self.outcome = error

    def result(self):
        self.join(20)
        return self.outcome


@pytest.fixture
def start_worker(real_backend):
    workers = []

    def start(seconds, ahead_s=0):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(seconds), str(ahead_s)],
            env={**os.environ, "REDIS_URL": real_backend.url},
            stdout=subprocess.PIPE,
            text=True,
        )
        workers.append(process)
        return process

    yield start
    for process in workers:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
    real_backend.client.flushall()


def has_job(worker):
    """Blocks until it has one; whether it may find the archive downloaded."""
    pid, may_be_downloaded = worker.stdout.readline().split()
    assert int(pid) == worker.pid
    return may_be_downloaded == "True"


def test_job_of_a_node_that_has_gone_is_done_by_another_one(real_backend, start_worker):
    # Given a control worker that has a job, and another one
    busy = start_worker(3600)
    inspection = Inspection(real_backend.connect())
    assert not has_job(busy)
    idle = start_worker(0)
    # When
    busy.send_signal(signal.SIGKILL)
    # Then the other one does it, and may find what the first one has downloaded
    assert inspection.result().model_name == str(idle.pid)
    assert has_job(idle)


@pytest.mark.parametrize("ahead_s", [0, 12 * 3600], ids=["same time", "hours ahead"])
def test_job_that_takes_long_is_not_given_to_another_node(real_backend, start_worker, ahead_s):
    # Given a control worker that has a job
    busy = start_worker(LOST_AFTER_S * 2)
    inspection = Inspection(real_backend.connect())
    assert not has_job(busy)
    # When another one comes
    start_worker(0, ahead_s=ahead_s)
    eventually(lambda: real_backend.client.scard("rq:workers") == 2, 20)
    # Then
    assert inspection.result().model_name == str(busy.pid)


def test_job_that_two_workers_died_of_is_given_up(real_backend, start_worker):
    # Given
    inspection = Inspection(real_backend.connect())
    # When
    for _ in range(2):
        worker = start_worker(3600)
        has_job(worker)
        worker.kill()
    # Then
    error = inspection.result()
    assert isinstance(error, WorkerDied)
    assert error.message.startswith("Two nodes ended while they inspected the archive: m.mar.")


def test_job_that_redis_has_lost_is_done_all_the_same(real_backend, start_worker):
    # Given
    inspection = Inspection(real_backend.connect())
    eventually(lambda: real_backend.client.dbsize() > 0)
    # When
    real_backend.client.flushall()
    worker = start_worker(0)
    # Then
    assert inspection.result().model_name == str(worker.pid)


def test_job_that_was_broken_off_is_begun_again(real_backend, start_worker):
    # Given: a connection that breaks when the job has ended, say
    worker = start_worker(-1)
    # When
    inspection = Inspection(real_backend.connect())
    # Then
    assert [has_job(worker), has_job(worker)] == [False, True]
    assert inspection.result().model_name == str(worker.pid)


def test_job_that_no_node_takes_is_given_up(real_backend):
    assert isinstance(Inspection(real_backend.connect(), timeout_s=1.0).result(), RequestTimeout)
