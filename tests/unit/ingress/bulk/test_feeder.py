"""Which batches a feeder runs, and when."""

import asyncio
import contextlib

import pytest

from batching.store.background_tasks import end_tasks
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, BatchStatus
from ingress.bulk.feeder import MOST_AT_ONCE, Feeder
from tests.support import eventually_async


def id_of(number):
    return f"batch_{number:032x}"


def make_batch(number, created_at=1):
    return Batch(id_of(number), "/predictions", "file-0", "24h", created_at, 2**40, 3600)


class Run:
    """A batch that ends when the test says so."""

    def __init__(self, folder, batch):
        self.folder, self.batch = folder, batch
        self.end = asyncio.Event()
        self.error = None

    async def run(self):
        await self.end.wait()
        if self.error is not None:
            raise self.error
        self.folder.save_batch(self.batch.entering(BatchStatus.COMPLETED))


class Fed:
    """A feeder at work, and the runs that it began."""

    def __init__(self, path):
        self.folder = BulkFolder(path)
        self.folder.create()
        self.runs = []

    def add(self, number, created_at=1):
        self.folder.save_batch(make_batch(number, created_at))

    @property
    def begun(self):
        return [int(run.batch.batch_id.removeprefix("batch_"), 16) for run in self.runs]

    def _begin(self, batch):
        self.runs.append(Run(self.folder, batch))
        return self.runs[-1]

    @contextlib.asynccontextmanager
    async def feeding(self):
        feeder = Feeder(self.folder, self._begin, look_s=0.005, again_s=0.02)
        task = asyncio.create_task(feeder.run())
        try:
            yield
        finally:
            await end_tasks([task])
            await feeder.close()


@pytest.fixture
def fed(tmp_path):
    return Fed(tmp_path)


async def test_oldest_batches_run_first_and_few_at_once(fed):
    # Given six batches, the last ones older, and one that has ended
    for number in range(6):
        fed.add(number, created_at=100 - number)
    fed.folder.save_batch(make_batch(6).entering(BatchStatus.FAILED))

    async with fed.feeding():
        # Then
        await eventually_async(lambda: len(fed.runs) == MOST_AT_ONCE)
        assert fed.begun == [5, 4, 3, 2]

        # And when one ends, the next one runs
        fed.runs[0].end.set()
        await eventually_async(lambda: len(fed.runs) == MOST_AT_ONCE + 1)
        assert fed.begun[-1] == 1


async def test_batch_that_stopped_begins_again(fed):
    fed.add(7)
    async with fed.feeding():
        await eventually_async(lambda: fed.begun == [7])
        # When its disk is full for a moment
        fed.runs[0].error = OSError("No space left on device")
        fed.runs[0].end.set()
        # Then
        await eventually_async(lambda: fed.begun == [7, 7])
        fed.runs[1].end.set()
        await eventually_async(lambda: fed.folder.batch(id_of(7)).status is BatchStatus.COMPLETED)


async def test_unreadable_record_keeps_no_other_batch_from_running(fed):
    (fed.folder.path / "batches" / f"{id_of(8)}.json").write_text("{")
    fed.add(7)
    async with fed.feeding():
        await eventually_async(lambda: fed.begun == [7])
