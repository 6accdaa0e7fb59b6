"""A server with traffic of every kind, and what it exports."""

from collections import defaultdict
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.e2e.archives import make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer, ferry_server

BATCH_SIZE = 4


@dataclass(frozen=True)
class Exported:
    """Metric -> label -> the values that it was seen with."""

    labels: dict[str, dict[str, set[str]]]

    @classmethod
    def of(cls, server: FerryServer) -> "Exported":
        found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        response = server.http.get(f"{server.metrics}/metrics", timeout=10)
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                seen = found[sample.name]
                for label, value in sample.labels.items():
                    seen[label].add(value)
        return cls(dict(found))


@pytest.fixture(scope="module")
def redis_server():
    with EmbeddedRedis(find_server()) as redis:
        yield redis


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server with a model of which one worker runs batches of four."""
    with ferry_server(tmp_path_factory.mktemp("deploy")) as running:
        archive, _ = make_scripted(running.store, "watched")
        running.register(archive, batch_size=BATCH_SIZE, max_batch_delay=20)
        yield running


@pytest.fixture(scope="session")
def exported(server):
    """Reads /metrics after answers, errors, full batches and single requests."""
    with Clients(server.inference, BATCH_SIZE) as clients:
        clients.ask("/predictions/watched", ["sleep 0.01|"] * BATCH_SIZE)
    assert server.predict("watched", b"alone").status_code == 200
    assert server.predict("watched", b"raise value|").status_code == 503
    assert server.predict("nobody").status_code == 404
    return Exported.of(server)
