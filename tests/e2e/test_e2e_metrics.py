"""/metrics tells what the traffic was, per model."""

import socket

import pytest

from tests.e2e.clients import TIME_TO_FILL_MS, Clients
from tests.e2e.metrics_text import Scrape
from tests.support import eventually

pytestmark = pytest.mark.slow

NAP_S = 0.2


def test_metrics_show_the_traffic_of_a_model(server, scripted):
    labels = {"model": "measured", "version": "1.0"}
    with (
        server.model(scripted, "measured", batch_size=4, max_batch_delay=TIME_TO_FILL_MS),
        Clients(server.inference, 4) as clients,
    ):
        # Given two batches of four that sleep, one request by itself, and one that fails
        for _ in range(2):
            naps = [f"sleep {NAP_S}|{number}" for number in range(4)]
            assert clients.ask("/predictions/measured", naps).statuses == [200] * 4
        assert server.predict("measured", b"alone").status_code == 200
        assert server.predict("measured", b"raise value|").status_code == 503

        # When a scraper comes
        scrape = Scrape(server)

    # Then requests are counted by code
    assert scrape.value("ferry_requests_total", **labels, code="200") == 9
    assert scrape.value("ferry_requests_total", **labels, code="503") == 1
    assert scrape.value("ferry_requests_total", **labels) == 10

    # And batches by size
    assert scrape.value("ferry_batch_size_count", **labels) == 4
    assert scrape.value("ferry_batch_size_sum", **labels) == 10
    assert scrape.value("ferry_batch_size_bucket", **labels, le="2.0") == 2
    assert scrape.value("ferry_batch_size_bucket", **labels, le="4.0") == 4

    # And the time in the handler per batch, the wait for it per request
    assert scrape.value("ferry_handler_seconds_count", **labels) == 4
    assert scrape.value("ferry_handler_seconds_sum", **labels) >= 2 * NAP_S
    assert scrape.value("ferry_queue_wait_seconds_count", **labels) == 10
    waited_s = scrape.value("ferry_queue_wait_seconds_sum", **labels)
    assert waited_s >= 1.9 * TIME_TO_FILL_MS / 1000  # two were alone for the whole delay

    # And the workers and the queue
    assert scrape.value("ferry_workers", **labels, state="READY") == 1
    assert scrape.has("ferry_queue_depth", **labels)
    assert scrape.value("ferry_queue_depth", **labels) == 0

    # And TorchServe's own counters, for the dashboards that read them
    theirs = {"model_name": "measured", "model_version": "default"}
    assert scrape.value("ts_inference_requests_total", **theirs) == 10
    # Their names have no `_total`; the parser adds it to every counter.
    assert scrape.value("ts_inference_latency_microseconds_total", **theirs) > 2 * NAP_S * 1e6
    assert scrape.value("ts_queue_latency_microseconds_total", **theirs) > 0


def test_metrics_show_the_host_and_how_long_a_worker_took_to_load(server, innocent):
    # Given a node that measures two seconds after its start
    eventually(lambda: Scrape(server).has("CPUUtilization", Level="Host"), 10)
    # When
    scrape = Scrape(server)
    # Then
    assert scrape.value("MemoryUsed", Level="Host") > 0
    assert 0 < scrape.value("DiskUtilization", Level="Host") <= 100
    names = [sample.labels["WorkerName"] for sample in scrape.samples("WorkerLoadTime")]
    assert any(name.endswith(f"-{innocent}_1.0") for name in names)
    # And every answer is counted, on every port. The parser adds `_total` where a counter has none
    before = scrape.value("Requests4XX_total", Level="Host")
    assert server.manage("GET", "models/nobody").status_code == 404
    assert Scrape(server).value("Requests4XX_total", Level="Host") == before + 1
    # And what was no HTTP
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/9\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert Scrape(server).value("Requests4XX_total", Level="Host") == before + 2
