"""Nodes are scaled by a number that is right while workers are busy and nothing waits."""

import os
import signal

import pytest

from batching.models.spec import VersionKey
from batching.store.clients import connect
from batching.store.keys import VersionKeys
from benchmarks.servers.prometheus import PROMETHEUS, Prometheus
from tests.deploy.chart import (
    EVERYTHING,
    NAME,
    NAMESPACE,
    find,
    needs_helm,
    needs_prometheus,
    render,
    scaling_query,
)
from tests.deploy.expressions import selectors
from tests.e2e.archives import make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import ferry_server
from tests.e2e.metrics_text import Scrape
from tests.support import eventually

BATCH_SIZE = 8
NAP_S = 6.0 if PROMETHEUS else 1.0
LABELS = {"namespace": NAMESPACE, "job": f"{NAME}-metrics"}
VERSION = {"model": "busy", "version": "1.0"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def busy_server(redis_server, tmp_path_factory):
    """One worker of batches of eight, on a Redis that the test can look into."""
    with ferry_server(tmp_path_factory.mktemp("busy"), "--redis-url", redis_server.url) as server:
        archive, _ = make_scripted(server.store, "busy")
        server.register(archive, batch_size=BATCH_SIZE, max_batch_delay=1000)
        yield server


def is_busy_and_nothing_waits(client):
    keys = VersionKeys.of(VersionKey("busy", "1.0"))
    return client.llen(keys.queue) == 0 and client.hlen(keys.open) == BATCH_SIZE


@needs_helm
def test_scaled_object_has_the_query_that_is_tested_here():
    scaled = find(render(EVERYTHING), "ScaledObject", f"{NAME}-worker")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == scaling_query()
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_open_requests_are_counted_while_the_list_is_empty(busy_server, redis_server):
    # Given a worker that has taken all there was
    client = connect(redis_server.url)
    with Clients(busy_server.inference, BATCH_SIZE) as clients:
        clients.send("/predictions/busy", ["sleep 3|"] * BATCH_SIZE)
        eventually(lambda: is_busy_and_nothing_waits(client), 10)

        # When the gauge of the query is read
        [gauge, *_] = selectors(scaling_query())
        scrape = Scrape(busy_server)

        # Then it tells the work that a list's length would not
        assert scrape.value(gauge.metric, **VERSION) == BATCH_SIZE
        assert scrape.value("ferry_queue_depth", **VERSION) == 0
        clients.receive(BATCH_SIZE)

    # And none when it is done
    assert Scrape(busy_server).value(gauge.metric, **VERSION) == 0
    client.close()


@needs_prometheus
def test_query_follows_the_work_and_has_no_value_without_a_server(
    busy_server, redis_server, tmp_path
):
    client = connect(redis_server.url)
    query = scaling_query()
    target = busy_server.metrics.removeprefix("http://")
    with Prometheus(tmp_path, target, LABELS) as prometheus:
        # Given an idle worker: a number, and it is 0
        eventually(lambda: prometheus.value(query) == 0, 10)

        # When it takes all there is
        with Clients(busy_server.inference, BATCH_SIZE) as clients:
            clients.send("/predictions/busy", [f"sleep {NAP_S}|"] * BATCH_SIZE)
            eventually(lambda: is_busy_and_nothing_waits(client), 10)
            # Then
            eventually(lambda: prometheus.value(query) == BATCH_SIZE, NAP_S - 1)
            clients.receive(BATCH_SIZE)
        eventually(lambda: prometheus.value(query) == 0, 10)

        # When no model is left
        busy_server.manage("DELETE", "models/busy")
        # Then it is still a number
        eventually(lambda: prometheus.query("ferry_queue_open_requests") == [], 10)
        assert prometheus.value(query) == 0

        # And another server's open requests are not ours
        assert prometheus.value(query.replace(NAMESPACE, "elsewhere")) is None

        # When Redis stands still, it is none: a scaler that took it for 0 would remove busy nodes
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            eventually(lambda: prometheus.value(query) is None, 10)
            eventually(lambda: prometheus.value("min(ferry_redis_up)") == 0, 10)
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
    client.close()
