"""`ferry bench`: load, figures, and what is made of them."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from ferry.load.driver import NO_ANSWER, Load, drive
from ferry.load.figures import BatchCount, Figures, batch_count, figures, percentile
from ferry.load.report import Point, write_report
from ferry.main import main
from tests.http_server import serving
from tests.support import eventually

METRICS = """
# TYPE ferry_batch_size histogram
ferry_batch_size_bucket{model="m",version="1.0",le="+Inf",} 3.0
ferry_batch_size_count{model="m",version="1.0",} 3.0
ferry_batch_size_sum{model="m",version="1.0",} 12.0
ferry_batch_size_count{model="m",version="2.0",} 1.0
ferry_batch_size_sum{model="m",version="2.0",} 1.0
ferry_batch_size_count{model="other",version="1.0",} 9.0
ferry_batch_size_sum{model="other",version="1.0",} 9.0
"""


class Target(ThreadingHTTPServer):
    """Answers each request after `pause_s`, and remembers when it came and what it brought."""

    daemon_threads = True

    def __init__(self):
        self.pause_s = 0.0
        self.status = 200
        self.registered = self.removed = 0
        self.holds_at = -1
        self.held = threading.Event()
        self.metrics = METRICS
        self.bodies = Counter()
        self.tokens = set()
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        target = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                with target.lock:
                    target.open += 1
                    target.most_open = max(target.most_open, target.open)
                    length = int(self.headers.get("content-length", 0))
                    target.bodies[self.headers["content-type"], self.rfile.read(length)] += 1
                time.sleep(target.pause_s)
                with target.lock:
                    target.open -= 1
                    target.tokens.add((self.path[:7], self.headers["authorization"]))
                if self.path.startswith("/models"):
                    target.registered += 1
                    if target.registered == target.holds_at:
                        target.held.wait(60)
                    self.reply(200, b"{}")
                else:
                    self.reply(target.status, b"ok")

            def do_DELETE(self):
                target.removed += 1
                self.reply(200, b"{}")

            def do_GET(self):
                self.reply(200, target.metrics.encode())

            def reply(self, status, body):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/predictions/m"


@pytest.fixture
def target():
    server = Target()
    with serving(server):
        yield server


def load(target, **changes):
    return Load(target.url, **{"duration_s": 0.3, "warmup_s": 0.0, **changes})


def test_closed_loop_keeps_as_many_requests_open_as_it_has_connections(target):
    # Given
    target.pause_s = 0.02
    # When
    outcome = drive(load(target, connections=3, body=b"cat", headers={"content-type": "x/y"}))
    # Then
    assert target.most_open == 3
    assert set(target.bodies) == {("x/y", b"cat")}
    assert set(outcome.statuses) == {200}
    assert min(outcome.latencies_s) >= 0.02


def test_open_loop_sends_on_time_whether_or_not_it_is_answered(target):
    # Given a server that answers no request before all have come
    target.pause_s = 0.6
    # When
    outcome = drive(load(target, connections=100, rate_per_s=60))
    # Then far more than one connection's worth were open at once
    assert target.most_open >= 8
    assert outcome.statuses.total() == sum(target.bodies.values())


def test_throughput_is_what_the_server_does_and_not_what_is_asked_of_it(target):
    # Given a server of twenty requests per second
    target.pause_s = 0.05
    # When
    outcome = drive(load(target, connections=1, rate_per_s=200))
    # Then
    assert figures(outcome).requests_per_s <= 20
    assert outcome.statuses[200] > 20


def test_warm_up_is_not_measured(target):
    # Given
    target.pause_s = 0.01
    # When
    outcome = drive(load(target, connections=1, warmup_s=0.3, duration_s=0.1))
    # Then
    assert outcome.statuses.total() < sum(target.bodies.values())


def test_failures_and_silence_are_no_successes(target):
    # Given
    target.status = 503
    # When
    refused = drive(load(target, connections=1))
    unheard = drive(Load("http://127.0.0.1:1/", duration_s=0.1, warmup_s=0.0, connections=1))
    # Then
    assert set(refused.statuses) == {503}
    assert set(unheard.statuses) == {NO_ANSWER}
    assert (refused.latencies_s, unheard.latencies_s) == ([], [])
    assert refused.reasons == {503: "ok"}
    assert "Cannot connect to host 127.0.0.1:1" in unheard.reasons[NO_ANSWER]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.95, 95), (0.99, 99), (1.0, 100), (0.0, 1)]
)
def test_percentile_is_a_value_that_was_measured(share, expected):
    assert percentile(list(range(1, 101)), share) == expected


def test_batches_of_all_versions_of_a_model_are_counted(target):
    found = batch_count(target.url, "m")
    assert found == BatchCount(batches=4, requests=13)
    assert found.since(BatchCount(3, 12)) == 1.0
    assert found.since(found) is None
    assert batch_count(target.url, "unknown") == BatchCount(0, 0)


def test_server_without_batches_says_nothing_of_them(target):
    assert batch_count("http://127.0.0.1:1/metrics", "m") is None
    target.metrics = '{"status": "no metrics"}'
    assert batch_count(target.url, "m") is None


POINTS = [
    Point(1, 0, Figures(100, 0, 10.0, 90.0, 95.0, 99.0, 1.0)),
    Point(8, 5, Figures(400, 2, 40.0, 150.0, 160.0, 170.0, 7.5)),
    Point(8, 50, Figures(420, 0, 42.0, 180.0, 190.0, 200.0, None)),
]


def test_report_has_the_figures_and_a_chart_that_says_what_was_measured(tmp_path):
    # When a title could be taken for a formula
    record, chart = write_report(tmp_path, "Batching $m", {"archive": "m"}, POINTS)
    first = chart.read_bytes()
    write_report(tmp_path, "Batching n", {}, POINTS)
    # Then
    assert json.loads(record.read_text())["points"][1]["requests_per_s"] == 40.0
    assert first.startswith(b"\x89PNG")
    assert first != chart.read_bytes()


def test_bench_at_a_rate_has_connections_for_all_that_leave(target):
    # Given a server that answers no request before all have come
    target.pause_s = 0.8
    # When
    words = ("--rate", "100", "--duration", "0.7", "--warmup", "0", "--metrics-url", target.url)
    CliRunner().invoke(main, ["bench", "url", target.url, *words])
    # Then more than the sixteen that a closed loop has
    assert target.most_open >= 30


def test_bench_that_is_over_before_the_first_answer_asks_for_more_time(target):
    # Given
    target.pause_s = 1.5
    # When
    short = ("--duration", "0.1", "--warmup", "1", "--metrics-url", target.url)
    result = CliRunner().invoke(main, ["bench", "url", target.url, *short])
    # Then
    assert result.exit_code == 1
    assert "in the seconds that are measured: raise --duration" in result.stderr


def test_bench_says_with_what_requests_were_refused(target):
    # Given
    target.status = 503
    # When
    words = ["bench", "url", target.url, "--duration", "0.1", "--warmup", "0"]
    result = CliRunner().invoke(main, [*words, "--metrics-url", target.url])
    # Then
    assert re.search(r"503 +\d+, the first: ok", result.stdout)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["url", "nonsense"], "not a URL like http://host:port/path"),
        (["url", "http://[::1/"], "not a URL like http://host:port/path"),
        (["url", "http://127.0.0.1:99999/"], "not a URL like http://host:port/path"),
        (["batching", "a.mar", "--batch-sizes", "²"], "whole numbers from 1 on"),
        (["batching", "a.mar", "--batch-sizes", "1,x"], "whole numbers from 1 on"),
        (["batching", "a.mar", "--batch-sizes", "0"], "whole numbers from 1 on"),
        (["batching", "a.mar", "--delays", "-1"], "whole numbers from 0 on"),
        (["url", "http://127.0.0.1:1/", "--rate", "-5"], "'--rate'"),
        (["url", "http://127.0.0.1:1/", "--rate", "inf"], "'--rate'"),
        (["url", "http://127.0.0.1:1/", "--duration", "0"], "'--duration'"),
        (["url", "http://127.0.0.1:1/", "--warmup", "-1"], "'--warmup'"),
    ],
)
def test_bench_says_what_it_cannot_read(words, complaint):
    result = CliRunner().invoke(main, ["bench", *words])
    assert result.exit_code == 2
    assert complaint in result.stderr


def bench_batching(target, folder, *words):
    root = target.url.partition("/predictions")[0]
    addresses = ("--management-url", root, "--inference-url", root, "--metrics-url", root)
    short = ("--duration", "0.1", "--warmup", "0", "--batch-sizes", "2", "--delays", "0")
    return CliRunner().invoke(
        main, ["bench", "batching", "m.mar", "--out", str(folder), *addresses, *short, *words]
    )


def test_folder_that_cannot_be_written_is_named_before_anything_is_measured(target, tmp_path):
    # Given
    (tmp_path / "file").touch()
    # When
    result = bench_batching(target, tmp_path / "file" / "out")
    # Then
    assert result.stderr == f"Error: cannot write to {tmp_path}/file/out: Not a directory\n"
    assert not target.bodies


def test_figures_are_printed_even_if_the_report_cannot_be_written(target, tmp_path):
    # Given
    (tmp_path / "chart.png").mkdir()
    # When
    result = bench_batching(target, tmp_path)
    # Then
    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: cannot write to {tmp_path}: Is a directory\n")
    assert len(result.stdout.splitlines()) == 3


def test_sweep_ends_when_no_request_succeeds(target, tmp_path):
    # Given
    target.status = 400
    # When
    result = bench_batching(target, tmp_path)
    # Then
    assert result.exit_code == 1
    words = "no request was answered with a success: 400, the first: ok"
    assert words in result.stderr
    assert "size" not in result.stdout


def test_sweep_has_a_token_for_each_door(target, tmp_path, monkeypatch):
    # Given
    monkeypatch.setenv("FERRY_TOKEN", "manage")
    monkeypatch.setenv("FERRY_INFERENCE_TOKEN", "infer")
    # When
    assert bench_batching(target, tmp_path).exit_code == 0
    # Then
    assert target.tokens == {("/models", "Bearer manage"), ("/predic", "Bearer infer")}


def test_bench_says_that_it_does_not_know_how_large_batches_were(target, tmp_path):
    # Given
    words = ("--metrics-url", "http://127.0.0.1:1/metrics")
    # Then
    complaint = "http://127.0.0.1:1/metrics does not tell how large batches were"
    assert complaint in bench_batching(target, tmp_path, *words).stderr
    url = ["bench", "url", target.url, "--duration", "0.1", "--warmup", "0", *words]
    assert complaint in CliRunner().invoke(main, url).stderr


@pytest.mark.usefixtures("hears_interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_figures_so_far_are_printed_when_a_sweep_is_interrupted(target, tmp_path, number):
    # Given a server that does not answer the third registration
    target.holds_at = 3
    root = target.url.partition("/predictions")[0]
    addresses = ("--management-url", root, "--inference-url", root, "--metrics-url", root)
    words = ("--duration", "0.5", "--warmup", "0", "--batch-sizes", "2", "--delays", "0,1,2,3,4")
    command = (sys.executable, "-m", "ferry.main", "bench", "batching", "m.mar", *addresses, *words)
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as sweep:
        # When
        eventually(lambda: target.registered == 3, 45)
        sweep.send_signal(number)
        printed, complaint = sweep.communicate(timeout=30)
    target.held.set()
    # Then
    assert [line.split()[:2] for line in printed.splitlines()[1:]] == [["1", "0"], ["2", "0"]]
    assert complaint.strip() == "Aborted!"
    assert sweep.returncode == 1
    assert target.removed == target.registered
