"""What a handler measures is in /metrics, and goes with the model."""

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer, ferry_server
from tests.e2e.metrics_text import Scrape
from tests.support import eventually

pytestmark = pytest.mark.slow

HANDLER = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None:
        return None
    metrics = context.metrics
    metrics.add_counter("Seen", len(data), None, [Dimension("Who", "me")])
    metrics.add_percent("Load", 50)
    size = metrics.add_metric_to_cache("Size", "B", ["Who"], MetricTypes.HISTOGRAM)
    for row in data:
        size.add_or_update(len(row["body"]), ["me"])
    return [b"" for _ in data]
"""


def test_metrics_of_a_handler_outlive_its_workers_and_go_with_the_model(tmp_path):
    # Given a server that shows every metric, and a model with two workers
    with ferry_server(tmp_path, "--model-metrics-auto-detect") as server:
        archive = make_archive(server.store, "measuring", {"handler.py": HANDLER})
        server.register(archive, initial_workers=2)

        # When it has answered, and its workers are gone
        for _ in range(5):
            assert server.predict("measuring", b"abc").status_code == 200
        server.manage("PUT", "models/measuring", min_worker=0, synchronous="true")

        # Then a scrape has the sums over both, under TorchServe's names
        scrape = Scrape(server)
        assert scrape.value("Seen_total", Who="me") == 5
        assert scrape.value("Load", ModelName="measuring", Level="Model") == 50
        assert scrape.value("Size_count", Who="me") == 5
        assert scrape.value("Size_bucket", Who="me", le="2.5") == 0
        assert scrape.value("Size_bucket", Who="me", le="5.0") == 5
        assert scrape.value("Size_sum", Who="me") == 15
        assert scrape.value("PredictionTime", ModelName="measuring", Level="Model") > 0
        text = server.http.get(f"{server.metrics}/metrics", timeout=10).text
        help_line = "# HELP Seen Torchserve prometheus counter metric with unit: Count\n"
        assert f"{help_line}# TYPE Seen counter\n" in text

        # And nothing of it once the model is unregistered
        server.manage("DELETE", "models/measuring")
        eventually(lambda: not Scrape(server).has("Seen_total", Who="me"), 5)


@pytest.mark.parametrize("mode", ["prometheus", "log"])
def test_client_that_has_its_answer_finds_what_was_measured_for_it(tmp_path, mode):
    # Given a server with two ingress processes that shows metrics, or writes them into a file
    options = ["--model-metrics-auto-detect", "--metrics-mode", mode, "--log-files"]
    log_path = tmp_path / "logs" / "model_metrics.log"

    def seen(server: FerryServer) -> float:
        if mode == "prometheus":
            return Scrape(server).value("Seen_total", Who="me")
        return log_path.read_text().count("Seen.Count:1.0")

    with ferry_server(tmp_path, *options, "--ingress-processes", "2") as server:
        server.register(make_archive(server.store, "measuring", {"handler.py": HANDLER}))

        # When
        found = []
        for _ in range(100):
            assert server.predict("measuring", b"abc").status_code == 200
            found.append(seen(server))

        # Then
        assert found == [*range(1, 101)]
