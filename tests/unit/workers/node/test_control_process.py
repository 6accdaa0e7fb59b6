"""A node's control process: a node without one must keep its workers."""

import asyncio
import errno
import os
import signal
import subprocess
import sys

import psutil

from batching.settings.settings import Settings
from batching.store.clients import connect
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.support import eventually, eventually_async
from workers.node import control_process


async def test_node_goes_on_while_its_system_starts_no_process(monkeypatch, caplog):
    # Given
    starts = []

    def spawn(*_):
        starts.append(len(starts))
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(control_process, "spawn", spawn)

    # When
    keeping = asyncio.create_task(control_process.keep_control_worker(Settings(), restart_s=0.01))
    await eventually_async(lambda: len(starts) > 5)
    # Then it is tried again
    assert not keeping.done()
    keeping.cancel()
    # And said once
    [line] = [one for one in caplog.messages if one.startswith("cannot run workers.control_jobs: ")]
    assert line.endswith(os.strerror(errno.EAGAIN))


async def test_node_has_a_second_control_worker_for_the_time_that_a_download_takes(redis_server):
    # Given
    client = connect(redis_server.url)
    client.flushall()

    before = set(psutil.Process().children())

    def workers():
        return client.scard("rq:workers")

    # When
    settings = Settings(redis_url=redis_server.url)
    keeping = asyncio.create_task(
        control_process.keep_control_workers(settings, second_after_s=0.1)
    )
    await eventually_async(lambda: workers() == 2, 20)
    children = set(psutil.Process().children()) - before
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    # Then both end with the node
    assert len(children) == 2
    assert not any(child.is_running() for child in children)
    client.flushall()
    client.close()


def test_control_worker_waits_for_a_redis_that_starts_later(tmp_path):
    # Given
    log = tmp_path / "log"
    server = EmbeddedRedis(find_server())
    environment = {**os.environ, **Settings(redis_url=server.url).to_environment()}
    with log.open("wb") as stream:
        words = [sys.executable, "-P", "-m", "workers.control_jobs"]
        worker = subprocess.Popen(words, env=environment, stderr=stream)
    try:
        eventually(lambda: "Redis does not answer" in log.read_text(), 20)
        # When
        with server, connect(server.url) as client:
            # Then it is the same process, and the node does not start another every second
            eventually(lambda: _listens_for_jobs(client), 20)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
        server.remove_folder()
    assert log.read_text().count("Redis does not answer") == 1


def _listens_for_jobs(client) -> bool:
    """Whether a worker waits for jobs. RQ registers it before it listens to signals."""
    return any(client.hget(key, "state") == b"idle" for key in client.scan_iter("rq:worker:*"))
