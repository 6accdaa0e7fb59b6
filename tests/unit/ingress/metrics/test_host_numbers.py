"""/metrics of several ingress processes: one sum, whichever is scraped, that never falls."""

import asyncio
import contextlib
import errno

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from batching.process.siblings import Siblings
from ingress.metrics import host_numbers
from ingress.metrics.host_numbers import HostNumbers
from ingress.rest.metrics_api import write_text


class Process:
    """What one ingress process counts."""

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

        monkeypatch.setattr(host_numbers, "write_atomically", write)
        one.count("200")
        # When / Then
        assert (await one.scrape())['answers_total{code="200",}'] == "1.0"
