"""A node's control process, whose want must not cost the node its workers."""

import asyncio
import errno
import os

from batching.settings import Settings
from tests.support import eventually_async
from workers import control_process


def test_node_goes_on_while_its_system_starts_no_process(monkeypatch, caplog):
    # Given
    starts = []

    def spawn(*_):
        starts.append(len(starts))
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(control_process, "spawn", spawn)
    monkeypatch.setattr(control_process, "RESTART_S", 0.01)

    async def run():
        # When
        keeping = asyncio.create_task(control_process.keep_control_worker(Settings()))
        await eventually_async(lambda: len(starts) > 1)
        # Then it is tried again
        assert not keeping.done()
        keeping.cancel()

    asyncio.run(run())
    assert "cannot run a control worker: " in caplog.text
