"""A worker's process goes with all that its handler has started, and when its time is over."""

import asyncio
import os
import resource
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from batching.process.child_process import kill_group
from tests.support import eventually, eventually_async
from tests.timing import assert_within
from workers.slots import worker_process
from workers.slots.assignment import Deadline
from workers.slots.worker_process import LATE, LOOK_S, STILL_S, WorkerProcess

ROOT = Path(__file__).parents[4]


def program(folder, pids):
    """What is run for a worker's interpreter; it has a child, whose number it writes down."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {pids}\nexec sleep 60\n")
    python.chmod(0o755)
    return python


async def watch(worker, is_begun):
    """The task that watches the worker, once it has begun."""
    watching = asyncio.create_task(worker.watch(lambda _: None))
    await asyncio.sleep(0)
    await eventually_async(is_begun)
    return watching


class Family:
    """A worker whose handler has a process of its own."""

    def __init__(self, folder):
        self.pids = folder / "pids"
        self.pids.touch()
        self.worker = WorkerProcess.start(
            program(folder, self.pids), lambda *_: {"PATH": "/bin:/usr/bin"}
        )

    def is_gone(self):
        try:
            return psutil.Process(int(self.pids.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


@pytest.fixture
def family(tmp_path):
    made = Family(tmp_path)
    yield made
    kill_group(made.worker._child)


async def test_child_of_a_worker_that_ends_as_it_is_told_to_goes_with_it(family, monkeypatch):
    watching = await watch(family.worker, family.pids.read_text)
    worker = psutil.Process(family.worker.pid)
    worker.kill()
    eventually(lambda: worker.status() == psutil.STATUS_ZOMBIE)  # before its node learns of it
    # When the node stops it, having seen it alive a moment ago
    monkeypatch.setattr(worker_process, "has_exited", lambda _: False)
    family.worker.terminate()
    # Then
    await watching
    await eventually_async(family.is_gone)


async def test_child_of_a_worker_that_its_node_leaves_goes_with_it(family):
    watching = await watch(family.worker, family.pids.read_text)
    # When
    watching.cancel()
    await asyncio.wait({watching})
    # Then
    await eventually_async(family.is_gone)


def test_node_without_a_descriptor_does_not_know_the_memory_of_its_worker(tmp_path):
    # Given
    worker = Family(tmp_path).worker
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    # When
    try:
        memory_bytes = worker.resident_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        kill_group(worker._child)
        os.close(worker._reader_fd)
    # Then: a worker that has loaded is seen as READY all the same
    assert memory_bytes == 0


# What is run for a worker: it has its deadline, and does what its handler does.
AT_WORK = """
import ctypes, os, signal, threading, time
from workers.slots.assignment import Deadline

def hang():
    while True:
        time.sleep(1000)

def ignore(number):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass

def mask():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

def swallow():
    def interrupt(number, frame):
        raise TimeoutError
    for number in (signal.SIGALRM, signal.SIGVTALRM):
        signal.signal(number, interrupt)
    while True:
        try:
            hang()
        except TimeoutError:
            pass

deadline = Deadline(int(os.environ["DEADLINE"]), run_s=1.0, wait_s=1.0)
print("begun", file=open(os.environ["BEGUN"], "w"), flush=True)
"""
HOSTILE = {
    # A thread that a handler has left holds the interpreter's lock.
    "between two batches": "deadline.look_for_work()",
    "alarm": "signal.alarm(0)",
    "timer": "signal.setitimer(signal.ITIMER_REAL, 0)",
    "ignored": "for number in signal.valid_signals(): ignore(number)",
    "masked": "mask()",
    "swallowed": "swallow()",
    "threads": "for _ in range(50): threading.Thread(target=hang, daemon=True).start()",
    "lock": "mask(); ctypes.PyDLL(None).pause()",
    "fork": "os.fork() or mask()",
    # Its child is out of reach, and ends by itself.
    "session": "os.fork() or (os.setsid(), time.sleep(5), os._exit(0))",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
}
USUAL = ("between two batches", "masked", "lock", "fork", "stopped")  # the others in make test-all


class AtWork:
    """A worker that does this; `end` is how it ended, and after how long."""

    def __init__(self, folder, code):
        self.begun = folder / "begun"
        script, python = folder / "at_work.py", folder / "python"
        script.write_text(f"{AT_WORK}\n{code}\n")
        python.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
        python.chmod(0o755)
        self.worker = WorkerProcess.start(
            python,
            lambda _, deadline: {
                "PYTHONPATH": str(ROOT),
                "DEADLINE": str(deadline),
                "BEGUN": str(self.begun),
            },
        )

    async def begin(self):
        return await watch(self.worker, self.begun.exists), time.monotonic()


@pytest.mark.skipif(sys.platform != "linux", reason="ctypes.PyDLL(None).pause, valid_signals")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in HOSTILE],
)
async def test_worker_is_ended_after_its_time_whatever_its_handler_does(name, tmp_path):
    # Given
    at_work = AtWork(tmp_path, f"deadline.run()\n{HOSTILE[name]}\nhang()")
    watching, begun_s = await at_work.begin()
    # When
    ended = await asyncio.wait_for(watching, 20)
    # Then
    assert_within(time.monotonic() - begun_s, 1.5)
    assert ended.cause == LATE
    assert not ended.is_out_of_memory


async def test_worker_that_stood_still_together_with_its_node_goes_on(tmp_path):
    # Given
    at_work = AtWork(tmp_path, "while True: deadline.look_for_work(); time.sleep(0.001)")
    watching, _ = await at_work.begin()
    # When both stand still for longer than the worker's deadline, and the node wakes up first
    os.kill(at_work.worker.pid, signal.SIGSTOP)
    time.sleep(LOOK_S + STILL_S + 0.5)
    await asyncio.wait({watching}, timeout=0.5)
    os.kill(at_work.worker.pid, signal.SIGCONT)
    # Then
    await asyncio.wait({watching}, timeout=0.5)
    assert not watching.done()
    at_work.worker.kill()
    await watching


async def test_worker_that_goes_on_after_it_was_told_to_stop_is_ended(tmp_path):
    # Given
    code = "while True: deadline.look_for_work(); time.sleep(0.001)"
    at_work = AtWork(tmp_path, f"mask()\n{code}")
    watching, _ = await at_work.begin()
    # When
    await asyncio.wait({watching}, timeout=1.2)  # for longer than its deadline
    assert not watching.done()
    at_work.worker.terminate()
    # Then
    assert (await asyncio.wait_for(watching, 20)).cause == LATE


def test_thread_that_sends_after_its_handler_does_not_shorten_an_idle_workers_time():
    # Given
    deadline = Deadline(run_s=1.0, wait_s=100.0)
    deadline.run()
    deadline.pause()
    # When the handler returns meanwhile
    deadline.look_for_work()
    deadline.resume()
    # Then
    assert deadline.ends_at > time.monotonic() + 50
