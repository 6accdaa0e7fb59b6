"""A worker's process goes with all that its handler has started."""

import asyncio
import os
import resource
import subprocess
import sys

import psutil
import pytest

from batching.process.child_process import kill_group
from tests.support import eventually, eventually_async
from workers.slots import worker_process
from workers.slots.worker_process import WorkerProcess

# Orphans become children of the process that runs this, as of the first one of a container.
FIRST_PROCESS = """
import asyncio, ctypes, os, psutil, signal, sys
from pathlib import Path
from workers.slots.worker_process import WorkerProcess

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

async def ignore(_report):
    pass

async def main():
    worker = WorkerProcess.start(Path(sys.argv[1]), lambda _: {"PATH": "/bin:/usr/bin"})
    watching = asyncio.create_task(worker.watch(lambda _: None, ignore))
    while not Path(sys.argv[2]).read_text():
        await asyncio.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    await watching

asyncio.run(main())
print(len(psutil.Process().children()))
"""


def program(folder, pids):
    """What is run for a worker's interpreter; it has a child, whose number it writes down."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {pids}\nexec sleep 60\n")
    python.chmod(0o755)
    return python


class Family:
    """A worker whose handler has a process of its own."""

    def __init__(self, folder):
        self.pids = folder / "pids"
        self.pids.touch()
        self.worker = WorkerProcess.start(
            program(folder, self.pids), lambda _: {"PATH": "/bin:/usr/bin"}
        )

    async def begin(self):
        """The task that watches the worker, which has a child by now."""
        reports = []

        async def note(report):
            reports.append(report)

        watching = asyncio.create_task(self.worker.watch(lambda _: None, note))
        await eventually_async(lambda: reports and self.pids.read_text())
        return watching

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
    watching = await family.begin()
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
    watching = await family.begin()
    # When
    watching.cancel()
    await asyncio.wait({watching})
    # Then
    await eventually_async(family.is_gone)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans over")
def test_child_of_a_worker_is_no_zombie_of_a_containers_first_process(tmp_path):
    # Given
    pids = tmp_path / "pids"
    pids.touch()
    # When
    words = [sys.executable, "-c", FIRST_PROCESS, program(tmp_path, pids), pids]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    # Then
    assert (ended.stdout, ended.stderr) == ("0\n", "")


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


# A node, all of whose workers print.
NODE = """
import asyncio, sys
from pathlib import Path
from batching.process.logs import configure_logging
from batching.process.outputs import dropped_lines, outlet
from workers.slots.worker_process import WorkerProcess

async def ignore(_report):
    pass

async def main():
    worker = WorkerProcess.start(Path(sys.argv[1]), lambda _: {"PATH": "/bin:/usr/bin"})
    ended = await worker.watch(lambda _: None, ignore)
    outlet(1).drain()
    Path(sys.argv[2]).write_text(f"{ended.code} {dropped_lines()}")

configure_logging("info")
asyncio.run(main())
"""
PRINTING = r"""#!/bin/sh
set -e
for number in 1 2 3; do printf '\377 %s\n' $number; printf 'unfinished' >&2; done
"""


def run_node(folder, redirection):
    """Returns what the worker's end was, how many lines were dropped, and the output."""
    python, result = folder / "python", folder / "result"
    python.write_text(PRINTING)
    python.chmod(0o755)
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", NODE]
    done = subprocess.run([*words, python, result], capture_output=True, timeout=30, check=True)
    return result.read_text(), done.stdout, done.stderr


def test_print_of_a_worker_gets_to_its_nodes_output_as_it_is(tmp_path):
    lines = b"\xff 1\n\xff 2\n\xff 3\n"
    assert run_node(tmp_path, "") == ("0 0", lines, b"unfinished" * 3 + b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="no device that is always full")
def test_print_of_a_worker_succeeds_whatever_becomes_of_its_nodes_output(tmp_path):
    assert run_node(tmp_path, ">/dev/full") == ("0 3", b"", b"unfinished" * 3 + b"\n")
