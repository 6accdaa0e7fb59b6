"""A worker's process goes with all that its handler has started."""

import asyncio

import psutil
import pytest

from batching.child_process import kill_group
from tests.support import eventually, eventually_async
from workers import worker_process
from workers.worker_process import WorkerProcess


class Family:
    """A worker whose handler has a process of its own."""

    def __init__(self, folder):
        self.pids = folder / "pids"
        self.pids.touch()
        python = folder / "python"
        python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {self.pids}\nexec sleep 60\n")
        python.chmod(0o755)
        self.worker = WorkerProcess.start(python, lambda _: {"PATH": "/bin:/usr/bin"})

    async def begin(self):
        """The task that watches the worker, which has a child by now."""
        reports = []

        async def note(report):
            reports.append(report)

        watching = asyncio.create_task(self.worker.watch(note))
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


def test_child_of_a_worker_that_ends_as_it_is_told_to_goes_with_it(family, monkeypatch):
    async def run():
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

    asyncio.run(run())


def test_child_of_a_worker_that_its_node_leaves_goes_with_it(family):
    async def run():
        watching = await family.begin()
        # When
        watching.cancel()
        await asyncio.wait({watching})
        # Then
        await eventually_async(family.is_gone)

    asyncio.run(run())
