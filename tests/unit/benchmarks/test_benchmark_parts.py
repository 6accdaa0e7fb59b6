"""What `benchmarks.compare` measures with, in small: no Java, no network, no wrk."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from benchmarks.archives import write_archive
from benchmarks.bare_process import BareLoop
from benchmarks.compare import main, parse
from benchmarks.contest import Contest
from benchmarks.environments import environment_python
from benchmarks.load import BenchmarkError, Load, drive_to_the_end
from benchmarks.records import origin
from benchmarks.resnet import photo
from benchmarks.servers import Job
from benchmarks.workloads import WORKLOADS
from tests.http_server import serving


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(500 if body == b"bad" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Answering)) as address:
        yield f"{address}/"


def test_load_waits_for_every_request_that_it_sent(url):
    # When
    report = drive_to_the_end(Load(url, b"good", "image/jpeg", connections=4), 0.2)

    # Then
    assert report.requests_per_s > 0
    assert 0 < report.p50_ms <= report.p99_ms
    assert report.errors == 0


def test_load_is_refused_when_nothing_succeeds(url):
    # When / Then
    with pytest.raises(BenchmarkError, match="500"):
        drive_to_the_end(Load(url, b"bad", "image/jpeg", connections=1), 0.1)


@pytest.mark.parametrize(
    ("told", "commit", "is_clean"), [("abc123", "abc123", True), ("", "unknown", False)]
)
def test_record_names_the_commit_that_it_is_told_where_there_is_no_git(
    told, commit, is_clean, tmp_path, monkeypatch
):
    # Given
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BENCH_COMMIT", told)

    # When
    made = origin()

    # Then
    assert (made["commit"], made["is_clean"]) == (commit, is_clean)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--workload", "ehco"], "none of"),
        (["--servers", "torchserve,mozec"], "none of"),
        (["--seconds", "0"], "1 or more"),
    ],
)
def test_compare_says_what_it_cannot_read(words, complaint, capsys):
    # When
    with pytest.raises(SystemExit):
        parse(words)

    # Then
    assert complaint in capsys.readouterr().err


def test_compare_fails_when_there_is_no_tool(monkeypatch, capsys):
    # Given
    monkeypatch.setenv("PATH", "")

    # When
    code = main(["--workload", "echo", "--short"])

    # Then
    assert code == 2
    assert "wrk is not installed" in capsys.readouterr().out


@pytest.mark.slow
def test_environment_is_refused_when_a_package_cannot_be_had(tmp_path):
    # When / Then
    with pytest.raises(BenchmarkError, match="No matching distribution"):
        environment_python(tmp_path, "none", [("--no-index", "no-such-package")])
    assert not list(tmp_path.glob("none-*/ready"))


@pytest.mark.slow
def test_torchferry_serves_the_echo_of_a_comparison(tmp_path):
    # Given
    contest = Contest.prepared(WORKLOADS["echo"], tmp_path)

    # When
    with contest.torchferry() as server:
        contest.check(server)
        load = Load(server.url, contest.bodies[0], server.content_type, connections=8)
        report = drive_to_the_end(load, 0.3)

    # Then
    assert report.errors == 0
    with pytest.raises(BenchmarkError):
        drive_to_the_end(load, 0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_bare_loop_runs_an_archive_without_a_server(tmp_path):
    # Given a classifier that is there at once
    network = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10)
    )
    weights = tmp_path / "tiny.pt"
    torch.jit.script(network.eval()).save(str(weights))
    archive = tmp_path / "tiny.mar"
    model = {"modelName": "tiny", "modelVersion": "1.0", "handler": "image_classifier"}
    write_archive(archive, model | {"serializedFile": weights.name}, weights)
    (tmp_path / "photo.jpg").write_bytes(photo(0))
    job = Job("tiny", archive, archive, weights, batch_size=4, max_batch_delay_ms=5)

    # When
    report = BareLoop(job, tmp_path / "photo.jpg").measure(0.1)

    # Then
    assert report.requests_per_s > 0
    assert report.errors == 0
