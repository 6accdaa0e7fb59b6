import asyncio

from tests.support import eventually_async
from workers.node.probe_files import ProbeFiles


def watched(folder, is_ready, steps):
    """Runs the role while `steps` does."""

    async def run():
        role = asyncio.create_task(ProbeFiles(folder, is_ready, touch_s=0.01).run())
        try:
            await steps()
        finally:
            role.cancel()
            await asyncio.wait({role})

    asyncio.run(run())


def test_probe_files_follow_the_node(tmp_path):
    folder = tmp_path / "probes"
    alive, ready = folder / "alive", folder / "ready"
    is_ready = False

    async def steps():
        nonlocal is_ready
        # Given a node whose models load
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

    watched(folder, lambda: is_ready, steps)

    # And a node that has ended is neither
    assert list(folder.iterdir()) == []


def test_probe_files_of_a_killed_node_do_not_speak_for_the_next_one(tmp_path):
    # Given what a killed node has left
    (tmp_path / "ready").touch()

    async def steps():
        # When the next one runs, and is not ready
        await eventually_async((tmp_path / "alive").exists)
        # Then
        assert not (tmp_path / "ready").exists()

    watched(tmp_path, lambda: False, steps)
