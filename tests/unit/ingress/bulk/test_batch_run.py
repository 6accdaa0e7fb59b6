"""One batch against a real Redis: resumed, lost, expired and cancelled."""

import asyncio
import contextlib
import json

import msgspec
import pytest

from batching.store.background_tasks import end_tasks
from batching.store.clients import connect, connect_async
from batching.store.jobs.job_store import JobStore
from batching.store.keys import VersionKeys
from batching.store.registry.catalog import Catalog
from batching.store.registry.registry import Registry
from batching.store.worker_queue import WorkerQueue
from ingress.bulk import lines_in_queue
from ingress.bulk.batch_run import BatchRun, Queue
from ingress.bulk.bulk_errors import DiskFailed
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import BatchStatus, now_s
from ingress.bulk.bulk_service import BulkService, Upload
from ingress.bulk.output_lines import OutputFile
from ingress.jobs.job_service import JobService
from tests.support import KEY, eventually_async, items_of, make_outage, make_reply, make_spec

KEYS = VersionKeys.of(KEY)


class Bench:
    """A folder with a batch of some lines, a registered version, and a worker on demand."""

    def __init__(self, url, tmp_path, count):
        self.client = connect(url)
        self.worker = WorkerQueue(connect(url), KEY, "worker-a", 3000)
        self.folder = BulkFolder(tmp_path)
        self.folder.create()
        upload = Upload(self.folder, "in.jsonl")
        lines = [
            {"custom_id": f"c{n}", "method": "POST", "url": f"/predictions/{KEY.model_name}"}
            | {"body": n}
            for n in range(count)
        ]
        upload.path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        asked = {"input_file_id": upload.finish().file_id, "endpoint": "/predictions"}
        self.batch_id = BulkService(self.folder).create_batch(asked)["id"]
        registry = Registry(connect(url))
        registry.create(make_spec())
        self.async_client = connect_async(url)
        store = JobStore(self.async_client, 1_000_000)
        service = JobService(store, timeout_s=60, keep_s=60)
        self.queue = Queue(service, store, Catalog(registry, url, make_outage()))

    @property
    def batch(self):
        return self.folder.batch(self.batch_id)

    def change(self, **values):
        self.folder.save_batch(msgspec.structs.replace(self.batch, **values))

    @contextlib.asynccontextmanager
    async def feeding(self):
        """Runs the batch; at the end of the block the feeder is as dead as by a kill."""
        run = BatchRun(self.batch, self.folder, self.queue, max_body_bytes=1000)
        task = asyncio.create_task(run.run())
        try:
            yield task
        finally:
            await end_tasks([task])

    def work(self, limit=1):
        """Answers some lines; returns how many."""
        items = items_of(self.worker.claim(limit, 0.0))
        self.worker.reply(items, [make_reply("ok")] * len(items))
        return len(items)

    def waiting(self):
        return self.client.llen(KEYS.bulk_queue)

    def answered(self, file_id):
        path = self.folder.lines_path(file_id)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def jobs(self):
        return [name for name in self.client.scan_iter("*") if b":jobs:" in name]


@pytest.fixture
def bench(redis_url, tmp_path):
    return Bench(redis_url, tmp_path, 10)


async def finish(bench):
    async with bench.feeding() as task:
        while not task.done():
            if bench.waiting():
                bench.work(3)
            await asyncio.sleep(0.01)
        task.result()
    await bench.async_client.aclose()


def custom_ids(lines):
    return sorted(line["custom_id"] for line in lines)


async def test_another_feeder_goes_on_without_losing_or_doubling_a_line(bench):
    # Given one that died with three lines written, two finished, and half a line
    async with bench.feeding():
        await eventually_async(lambda: bench.waiting() == 10)
        bench.work(3)
        await eventually_async(lambda: len(bench.jobs()) == 7)
    bench.work(2)
    with bench.folder.lines_path(bench.batch.output_id).open("a") as stream:
        stream.write('{"id": "batch_req_')

    # When
    await finish(bench)

    # Then
    batch = bench.batch
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.counts.total, batch.counts.completed, batch.counts.failed) == (10, 10, 0)
    lines = bench.answered(batch.output_file_id)
    assert custom_ids(lines) == [f"c{n}" for n in range(10)]
    # And nothing of its jobs is left
    assert bench.jobs() == []
    assert list(bench.client.scan_iter("*:places:*")) == []


async def test_job_of_a_line_that_the_disk_did_not_take_stays(bench, monkeypatch):
    # Given a disk that is full when the first lines have finished
    def fail(_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(OutputFile, "sync", fail)
        async with bench.feeding() as task:
            await eventually_async(lambda: bench.waiting() == 10)
            bench.work(3)
            with pytest.raises(DiskFailed, match="No space"):
                await task
    assert len(bench.jobs()) == 10

    # When it has room again, and another feeder goes on
    await finish(bench)

    # Then
    assert custom_ids(bench.answered(bench.batch.output_file_id)) == [f"c{n}" for n in range(10)]


async def test_lines_that_redis_has_lost_run_again(bench):
    # Given three lines written, and then none of the others in Redis any more
    async with bench.feeding() as task:
        await eventually_async(lambda: bench.waiting() == 10)
        bench.work(3)
        await eventually_async(lambda: len(bench.jobs()) == 7)
        bench.client.delete(KEYS.bulk_queue, KEYS.open, *bench.jobs())

        # When / Then
        await eventually_async(lambda: bench.waiting() == 7)
        while not task.done():
            if bench.waiting():
                bench.work(3)
            await asyncio.sleep(0.01)
    await bench.async_client.aclose()
    lines = bench.answered(bench.batch.output_file_id)
    assert custom_ids(lines) == [f"c{n}" for n in range(10)]


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_rest_of_a_batch_expires(bench, is_resumed):
    # Given a batch with two lines answered
    if is_resumed:
        async with bench.feeding():
            await eventually_async(lambda: bench.waiting() == 10)
            bench.work(2)
            await eventually_async(lambda: len(bench.jobs()) == 8)

    # When its time is over
    bench.change(expires_at=now_s())
    async with bench.feeding() as task:
        await task
    await bench.async_client.aclose()

    # Then each other line is an error, under its id
    batch = bench.batch
    assert batch.status is BatchStatus.EXPIRED
    done = 2 if is_resumed else 0
    assert (batch.counts.completed, batch.counts.failed) == (done, 10 - done)
    errors = bench.answered(batch.error_file_id)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert custom_ids(errors) == [f"c{n}" for n in range(done, 10)]
    # And none runs
    assert bench.waiting() == 0
    assert bench.jobs() == []


async def test_cancelled_batch_keeps_what_has_finished(bench):
    # Given a feeder that died with ten lines in the queue, of which two were written
    async with bench.feeding():
        await eventually_async(lambda: bench.waiting() == 10)
        bench.work(2)
        await eventually_async(lambda: len(bench.jobs()) == 8)
    running = items_of(bench.worker.claim(1, 0.0))

    # When it is cancelled, and another one goes on
    bench.folder.ask_to_cancel(bench.batch_id)
    await finish(bench)

    # Then
    batch = bench.batch
    assert batch.status is BatchStatus.CANCELLED
    assert (batch.counts.total, batch.counts.completed, batch.counts.failed) == (10, 2, 0)
    assert bench.waiting() == 0
    # And the answer of the one that ran is dropped
    bench.worker.reply(running, [make_reply("late")])
    assert bench.jobs() == []


async def test_only_so_many_lines_are_in_the_queue(redis_url, tmp_path, monkeypatch):
    monkeypatch.setattr(lines_in_queue, "MOST_LINES", 4)
    bench = Bench(redis_url, tmp_path, 10)
    async with bench.feeding():
        await eventually_async(lambda: bench.waiting() == 4)
        bench.work(2)
        await eventually_async(lambda: bench.waiting() == 4)
    assert len(bench.jobs()) == 4
    await bench.async_client.aclose()


async def test_batch_whose_input_is_gone_fails(bench):
    bench.folder.lines_path(bench.batch.input_file_id).unlink()
    await finish(bench)
    assert bench.batch.status is BatchStatus.FAILED
