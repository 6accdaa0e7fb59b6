import asyncio
import contextlib

from tests.support import eventually_async
from workers.node.node import keep_probe_files


@contextlib.asynccontextmanager
async def probed(folder, is_ready):
    """Writes the probe files of a node, and ends as the node does."""
    role = asyncio.create_task(keep_probe_files(folder, is_ready, touch_s=0.01))
    try:
        yield
    finally:
        role.cancel()
        await asyncio.wait({role})


async def test_probe_files_follow_the_node(tmp_path):
    folder = tmp_path / "probes"
    alive, ready = folder / "alive", folder / "ready"
    is_ready = False
    # Given what a killed node has left
    folder.mkdir()
    ready.touch()

    async with probed(folder, lambda: is_ready):
        # When the next one loads its models
        await eventually_async(alive.exists)
        assert not ready.exists()
        # When they are loaded
        is_ready = True
        # Then
        await eventually_async(ready.exists)
        # When one of them is loaded anew
        is_ready = False
        # Then
        await eventually_async(lambda: not ready.exists())
        # And its life is a matter of the last second
        written = alive.stat().st_mtime_ns
        await eventually_async(lambda: alive.stat().st_mtime_ns > written)

    # And a node that has ended is neither
    assert list(folder.iterdir()) == []
