"""Slots whose workers do not come to serve, and the reason that is published."""

import asyncio
import errno
import itertools
import os
import sys
from pathlib import Path

import fakeredis
import fakeredis.aioredis
import psutil
import pytest

from batching.errors import DependenciesFailed
from batching.models.statuses import NodeStatus, WorkerState
from batching.settings.settings import Settings
from batching.store.ingress_queue import SubmitCode
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.records import rest_of_record
from batching.store.registry.registry import Registry
from batching.store.scripts import loader
from tests.support import KEY, eventually_async, join, make_outage, make_spec, wire_of
from workers.archives.model_files import Prepared
from workers.machine import Device
from workers.slots import worker_process
from workers.slots.assignment import ENV_NAME
from workers.slots.slot import Slot, SlotContext

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
DEAD_AFTER_S = 60  # the node joins and then does not beat any more
TRIED_AT_ONCE = 2  # starts before the first delay
# In a shell: the descriptor that reports go to.
REPORTS = f"$(echo ${ENV_NAME} | sed 's/.*status_fd\": \\([0-9]*\\).*/\\1/')"


class Parts:
    """A slot of a node that has joined; its worker is run by `python`."""

    def __init__(self, python, spec=None, settings=None, prepare=None):
        self.server = fakeredis.FakeServer()
        self.client = fakeredis.FakeRedis(server=self.server)
        self.registry = Registry(self.client, dead_after_s=DEAD_AFTER_S)
        client = fakeredis.aioredis.FakeRedis(server=self.server)
        self.queue = NodeQueue(client, DEAD_AFTER_S * 1000)
        self.python = python
        self.starts = 0
        context = SlotContext(
            "node-a",
            settings or Settings(),
            self.queue,
            itertools.count(),
            prepare or self._prepare,
            make_outage(),
        )
        self.slot = Slot(context, spec or make_spec(), 0, Device("cpu"), 1)

    async def _prepare(self, _spec, *, is_exact):
        self.starts += 1
        return Prepared(Path(), self.python)

    def states(self):
        return [worker.state for worker in self.registry.workers(KEY)]

    async def fail_often(self):
        """The slot has tried in vain until it is not counted on any more, and is stopped."""
        await join(self.queue, NODE)
        living = asyncio.create_task(self.slot.run())
        await eventually_async(lambda: not self.slot.record.is_expected and not self.beats(), 20)
        # Between its last worker and the next report of it, no worker is seen.
        [worker] = await eventually_async(lambda: self.registry.workers(KEY))
        assert not living.done()
        self.slot.stop()
        await living
        return worker

    def beats(self):
        return self.client.zcard(VersionKeys.of(KEY).worker_beats)


def script(folder, text):
    """What is run for a Python interpreter."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    return python


def no_room():
    """The error of requirements that find the disk full."""
    error = DependenciesFailed("not installed: No space left on device")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


def failing(error):
    """What raises this error wherever files are prepared, and counts."""

    async def prepare(_spec, *, is_exact):
        prepare.calls += 1
        raise error

    prepare.calls = 0
    return prepare


async def test_worker_that_cannot_be_watched_is_gone_and_tried_again_later(tmp_path, monkeypatch):
    # Given a system that starts processes and has no descriptor left to watch them
    python = script(tmp_path, f"echo $$ >> {tmp_path}/pids\nexec sleep 60")
    pids = tmp_path / "pids"

    async def exited(_child):
        await eventually_async(lambda: len(pids.read_text().split()) == parts.starts)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pids.touch()
    monkeypatch.setattr(worker_process, "exited", exited)
    parts = Parts(python)
    # When
    worker = await parts.fail_often()
    # Then
    assert parts.starts == TRIED_AT_ONCE
    assert (worker.failures, worker.error) == (TRIED_AT_ONCE, os.strerror(errno.EMFILE))
    assert not [pid for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), no_room()], ids=str)
async def test_worker_that_cannot_be_prepared_for_now_is_tried_again_later(error):
    # Given
    prepare = failing(error)
    # When
    worker = await Parts(None, prepare=prepare).fail_often()
    # Then
    assert prepare.calls == TRIED_AT_ONCE
    assert (worker.failures, worker.error) == (TRIED_AT_ONCE, str(error))


# What is run for Python, if anything, why it fails, and whether for want of memory.
FAILING_STARTS = {
    "no process is started": (None, os.strerror(errno.ENOENT), False),
    "too slow": ("exec sleep 60", "did not load within startup_timeout of 0.2 s", False),
    "killed": ("kill -KILL $$", "killed, perhaps for memory", True),
}


@pytest.mark.parametrize(
    ("text", "error", "lacks_memory"), FAILING_STARTS.values(), ids=FAILING_STARTS
)
async def test_worker_that_fails_at_its_start_is_tried_again_later_and_not_counted_on(
    text, error, lacks_memory, tmp_path
):
    # Given
    python = script(tmp_path, text) if text else Path("/nowhere/python")
    parts = Parts(python, make_spec(startup_timeout_s=0.2))
    # When
    worker = await parts.fail_often()
    # Then each start is a failed one, and Redis says why
    assert parts.starts == worker.failures == TRIED_AT_ONCE
    assert (worker.error, worker.is_out_of_memory) == (error, lacks_memory)


async def test_worker_that_has_loaded_in_time_lives_although_redis_is_away(tmp_path):
    # Given a worker that loads, and writes down when it is past its time
    report = '{"state": "READY", "interface": {"summary": "Doubles."}}'
    text = f"echo '{report}' > /dev/fd/{REPORTS}\nsleep 2\ntouch {tmp_path}/late\nexec sleep 60"

    async def prepare(_spec, *, is_exact):
        # When Redis goes before it is said that there is a process, and stays away for longer
        parts.server.connected = False
        return Prepared(Path(), script(tmp_path, text))

    parts = Parts(None, make_spec(startup_timeout_s=1), prepare=prepare)
    await join(parts.queue, NODE)
    living = asyncio.create_task(parts.slot.run())
    await eventually_async((tmp_path / "late").exists, 10)
    parts.server.connected = True
    # Then it is the one that serves, and took as long as it did
    await eventually_async(lambda: parts.slot.record.state is WorkerState.READY)
    assert parts.slot.record.worker_id == "node-a-0"
    assert parts.slot.record.status.load_ms < 1000
    await eventually_async(lambda: parts.states() == [WorkerState.READY])
    assert parts.registry.workers(KEY)[0].interface == {"summary": "Doubles."}
    parts.slot.stop()
    await living


async def test_stop_does_not_wait_for_files_that_others_will_need():
    # Given a slot that waits for a download
    downloaded = asyncio.Event()
    made = []

    async def prepare(_spec, *, is_exact):
        made.append("begun")
        await downloaded.wait()
        made.append("done")

    parts = Parts(Path(), prepare=prepare)
    living = asyncio.create_task(parts.slot.run())
    await eventually_async(lambda: made)
    # When
    parts.slot.stop()
    await asyncio.wait_for(living, 5)
    # Then it ends, and its download does not
    assert made == ["begun"]
    downloaded.set()
    await eventually_async(lambda: made == ["begun", "done"])
    assert parts.beats() == 0


@pytest.mark.parametrize("garbage", ["[", "5", "null", "[]", "{}", '{"state": "ASLEEP"}'])
async def test_report_that_cannot_be_read_does_not_hide_the_next_one(garbage, tmp_path):
    # Given a worker that writes more than is read at once, and then why it failed
    text = f"""exec {sys.executable} - <<END
import json, os
reports = json.loads(os.environ["{ENV_NAME}"])["status_fd"]
failure = {{"state": "FAILED", "error": "no weights", "traceback": "z" * 90_000}}
os.write(reports, b"x" * 3_000_000 + b"\\n" + {garbage.encode()!r} + b"\\n")
os.write(reports, json.dumps(failure).encode() + b"\\n")
os._exit(3)
END"""
    parts = Parts(script(tmp_path, text))
    # When
    worker = await parts.fail_often()
    # Then
    assert worker.error == "no weights"
    assert worker.traceback == "z" * 90_000


@pytest.mark.parametrize("is_in_files", [True, False])
async def test_standard_error_of_a_worker_goes_with_its_output_into_files(
    is_in_files, tmp_path, capfd
):
    # Given
    python = script(tmp_path, "echo printed\necho warned >&2\nexit 3")
    # When
    await Parts(python, settings=Settings(log_files=is_in_files)).fail_often()
    # Then
    printed, warned = capfd.readouterr()
    assert "printed\n" in printed
    assert ("warned\n" in printed, "warned\n" in warned) == (is_in_files, not is_in_files)


async def test_model_that_cannot_be_installed_is_given_up_at_once_and_no_client_waits(caplog):
    # Given a client that asks while that is tried
    async def prepare(_spec, *, is_exact):
        parts.starts += 1
        record = rest_of_record("ingress-a", 60_000, 0, wire_of("a").head)
        submit_keys = loader.ordered_keys("submit", VersionKeys.of(KEY))
        # As an ingress does, whose connection fakeredis has not.
        submit = loader.script(parts.client, "submit")
        asked = submit(submit_keys, ["ingress-a", 3000, 60_000, "a", record])
        assert asked == [SubmitCode.QUEUED]
        raise DependenciesFailed("no such package")

    parts = Parts(None, prepare=prepare)
    parts.registry.create(make_spec())
    await join(parts.queue, NODE)
    # When
    living = asyncio.create_task(parts.slot.run())
    await eventually_async(lambda: parts.states() == [WorkerState.FAILED])
    await eventually_async(lambda: not parts.client.exists(VersionKeys.of(KEY).queue))
    # Then
    assert not living.done()
    assert parts.starts == 1
    reply = VersionKeys.of(KEY).reply_prefix + "a"
    assert parts.client.get(reply) == b"a!no_worker"
    assert "refused model=digits version=1.0 requests=1" in caplog.text
    parts.slot.stop()
    await living
    assert parts.states() == []
