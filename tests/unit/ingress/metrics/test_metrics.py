"""What an ingress measures, as /metrics has it."""

import asyncio
import contextlib
import errno
import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from batching.models.spec import VersionKey
from batching.process.siblings import Siblings
from batching.protocol import BatchTiming
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ingress.metrics import ingress_metrics
from ingress.metrics.ingress_metrics import LAST_VALUES, LEGACY, HostNumbers, Metrics
from ingress.rest.metrics_api import write_text
from ingress.role import Role
from tests.support import came_true
from tests.timing import assert_within

KEY = VersionKey("m", "1.0")


def lines(metrics, *names):
    return write_text(metrics.collect(), names).decode().splitlines()


def sample(metrics, start):
    [line] = [line for line in lines(metrics) if line.startswith(start)]
    return float(line.rpartition(" ")[2])


def test_b19_text_is_written_whatever_a_label_holds():
    # Given half of a character, which has no UTF-8
    metrics = Metrics()
    metrics.version(VersionKey("a\ud800", "1"), None).count_answer(200, 0.01, None)
    # When / Then
    assert any('model="a?",' in line for line in lines(metrics))


def test_torchserve_counters_keep_their_names_and_version_label():
    # Given
    metrics = Metrics()
    by_default, by_version = metrics.version(KEY, None), metrics.version(KEY, "1.0")
    timing = BatchTiming(batch_size=4, queue_us=500, handler_us=900, is_first=False)
    # When
    for measured in (by_default, by_version):
        measured.count_arrival()
    by_default.count_answer(200, 0.002, timing)
    by_version.count_answer(503, 0.002, timing)
    # Then
    where = '{model_name="m",model_version="default"'
    assert sample(metrics, f"ts_inference_requests_total{where}") == 1
    assert sample(metrics, f"ts_inference_latency_microseconds{where}") == 2000
    assert sample(metrics, f"ts_queue_latency_microseconds{where}") == 500
    where = '{model_name="m",model_version="1.0"'
    assert sample(metrics, f"ts_inference_requests_total{where}") == 1
    assert sample(metrics, f"ts_inference_latency_microseconds{where}") == 0


@pytest.mark.parametrize("logged", [LAST_VALUES, (*LAST_VALUES, *LEGACY)])
def test_metrics_are_lines_of_torchserves_form_when_they_are_logged(caplog, logged):
    # Given
    measured = Metrics(logged).version(KEY, None)
    # When
    with caplog.at_level("INFO", "TS_METRICS"):
        measured.count_arrival()
        measured.count_answer(200, 0.01, BatchTiming(1, 2000, 3000, is_first=True))
    # Then
    lines = [record.getMessage() for record in caplog.records]
    assert {line.partition(".")[0] for line in lines} == set(logged)
    [queue] = [line for line in lines if line.startswith("QueueTime")]
    assert queue.startswith("QueueTime.Milliseconds:2.0|#Level:Host|#hostname:")


def test_batch_is_counted_once_however_many_requests_it_holds():
    # Given
    metrics = Metrics()
    measured = metrics.version(KEY, None)
    # When
    for position in range(4):
        measured.count_answer(200, 0.01, BatchTiming(4, 100, 9000, is_first=position == 0))
    # Then
    assert sample(metrics, "ferry_batch_size_count") == 1
    assert sample(metrics, "ferry_handler_seconds_sum") == 0.009
    assert sample(metrics, "ferry_request_seconds_count") == 4
    assert sample(metrics, "ferry_queue_wait_seconds_count") == 4


def test_batch_that_was_run_one_by_one_without_a_fault_is_counted_once():
    # Given
    metrics = Metrics()
    measured = metrics.version(KEY, None)
    # When
    for is_first in (True, False):
        timing = BatchTiming(2, 100, 9000, is_first=is_first, is_unbatched=True)
        measured.count_answer(200, 0.01, timing)
    measured.count_answer(200, 0.01, BatchTiming(1, 100, 900, is_first=True))
    # Then
    assert sample(metrics, "ferry_unbatched_batches_total") == 1


def test_version_that_is_not_registered_any_more_has_no_series_and_begins_anew():
    # Given two versions that were asked in each way, and answered well and badly
    metrics = Metrics()
    kept = VersionKey("m", "2.0")
    for key, asked in ((KEY, None), (KEY, "1.0"), (kept, None), (kept, "2.0")):
        measured = metrics.version(key, asked)
        measured.count_arrival()
        measured.count_answer(200, 0.01, BatchTiming(1, 100, 900, is_first=True))
        measured.count_answer(503, 0.01, None, reason="no_worker")
    metrics.count_unknown(404, "model_not_found")
    left = [line for line in lines(metrics) if 'version="1.0"' not in line]
    # When
    metrics.keep_only({kept})
    # Then
    assert lines(metrics) == left
    assert 'ts_inference_requests_total{model_name="m",model_version="default"' in str(left)
    # And the last version of a model takes along what its name alone was asked for
    metrics.keep_only(set())
    assert not [line for line in lines(metrics) if '="m"' in line]
    # And what is registered again is counted again
    metrics.version(KEY, None).count_answer(200, 0.01, None)
    assert sample(metrics, 'ferry_requests_total{model="m",version="1.0",code="200"') == 1
    assert sample(metrics, "ferry_request_seconds_count") == 1


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("why", ["unregistered", "emptied", "away"])
def test_unregistered_version_is_shown_once_more(ingress, why):
    # Given
    key = ingress.register("echo", min_worker=0).key
    ingress.services.metrics.version(key, None).count_answer(200, 0.01, None)
    ingress.services.broker.resubmitted[key] += 1
    ingress.registry.remove(key)
    if why == "emptied":  # until its nodes bring it back
        ingress.services.client.flushall()
    elif why == "away":  # and may come back empty
        ingress.services.probe_registry = Registry(connect("unix:///nowhere/redis.sock"))
    client = ingress.apps[Role.METRICS].test_client()

    def is_shown():
        return 'model="echo"' in client.get("/metrics").text

    # When / Then
    assert is_shown()
    is_forgotten = why == "unregistered"
    assert came_true(lambda: not is_shown(), 5.0 if is_forgotten else 0.5) is is_forgotten


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1.0"), (float("inf"), "+Inf"), (float("-inf"), "-Inf")]
)
def test_numbers_are_written_as_the_format_has_them(value, text):
    family = Metric("m", "M.", "gauge")
    family.add_sample("m", {}, value)
    assert write_text([family]).splitlines()[-1] == f"m {text}".encode()


@pytest.mark.usefixtures("node")
def test_scrape_does_not_wait_for_a_redis_that_stands_still(ingress, frozen):
    # Given: siblings are asked for half a second
    ingress.register("echo", min_worker=0)
    with frozen():
        # When
        started_s = time.monotonic()
        families = ingress.services.numbers.collect()
        took_s = time.monotonic() - started_s
    # Then
    assert families
    assert_within(took_s, 0.25)


# --- several ingress processes: one sum, whichever is scraped, that never falls


class Process:
    """Counts what one ingress process does."""

    def __init__(self, number, folder, count=2):
        self.registry = CollectorRegistry(auto_describe=False)
        shared = {"registry": self.registry}
        self.answers = Counter("answers", "Answers.", ("code",), **shared)
        self.seconds = Histogram("seconds", "Seconds.", ("model",), buckets=(1, 10), **shared)
        self.open = Gauge("open", "Open.", registry=self.registry)
        self.numbers = HostNumbers(self.registry.collect, Siblings(number, count, folder))

    async def __aenter__(self):
        await self.numbers.start()
        return self

    async def __aexit__(self, *_):
        self.numbers.close()

    def count(self, code, times=1):
        for _ in range(times):
            self.answers.labels(code).inc()

    async def scrape(self):
        families = await asyncio.to_thread(self.numbers.collect)
        lines = write_text(families).decode().splitlines()
        # When a series began is only in families of prometheus_client's own counters.
        return dict(line.split() for line in lines if line[0] != "#" and "_created" not in line)


@contextlib.asynccontextmanager
async def pair_in(folder):
    async with Process(1, folder) as one, Process(2, folder) as two:
        yield one, two


async def test_each_process_tells_the_sums_of_all(tmp_path):
    async with pair_in(tmp_path) as (one, two):
        # Given
        one.count("200", 3)
        two.count("200", 4)
        two.count("503")
        one.seconds.labels("m").observe(0.5)
        two.seconds.labels("m").observe(5)
        one.open.set(1)
        two.open.set(2)
        # When
        found = await one.scrape()
        # Then
        assert found == await two.scrape()
        assert found == {
            'answers_total{code="200",}': "7.0",
            'answers_total{code="503",}': "1.0",
            'seconds_bucket{model="m",le="1.0",}': "1.0",
            'seconds_bucket{model="m",le="10.0",}': "2.0",
            'seconds_bucket{model="m",le="+Inf",}': "2.0",
            'seconds_count{model="m",}': "2.0",
            'seconds_sum{model="m",}': "5.5",
            "open": "3.0",
            'ferry_ingress_processes{state="answering",}': "2.0",
            'ferry_ingress_processes{state="silent",}': "0.0",
        }


async def test_sums_of_a_scrape_stay_when_a_process_dies_and_comes_back(tmp_path):
    async with pair_in(tmp_path) as (one, two):
        # Given a process that dies after a scrape
        one.count("200", 3)
        two.count("200", 4)
        two.open.set(2)
        await one.scrape()
        two.numbers.close()
        # When
        found = await one.scrape()
        # Then its requests stay counted, but are open no longer
        assert found['answers_total{code="200",}'] == "7.0"
        assert found["open"] == "0.0"
        assert found['ferry_ingress_processes{state="silent",}'] == "1.0"
        # When it is started again, and again
        for _ in range(2):
            again = Process(2, tmp_path)
            await again.numbers.start()
            again.count("200")
            # Then
            assert (await one.scrape())["open"] == "0.0"
            again.numbers.close()
        assert (await one.scrape())['answers_total{code="200",}'] == "9.0"


async def test_process_without_siblings_tells_its_own_numbers(tmp_path):
    # Given
    alone = Process(1, tmp_path, count=1)
    await alone.numbers.start()
    alone.count("200")
    # When / Then
    assert (await alone.scrape())['answers_total{code="200",}'] == "1.0"
    assert list(tmp_path.iterdir()) == []


async def test_last_values_of_torchserve_are_no_sums(tmp_path):
    async with pair_in(tmp_path) as (one, two):
        # Given
        for process, value in zip((one, two), (7.0, 9.0), strict=True):
            Gauge("QueueTime", "Time.", registry=process.registry).set(value)
        # When / Then
        assert (await one.scrape())["QueueTime"] == "7.0"


async def test_scrape_goes_on_when_the_disk_is_full(tmp_path, monkeypatch):
    async with pair_in(tmp_path) as (one, _):
        # Given
        def write(*_):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(ingress_metrics, "write_atomically", write)
        one.count("200")
        # When / Then
        assert (await one.scrape())['answers_total{code="200",}'] == "1.0"
