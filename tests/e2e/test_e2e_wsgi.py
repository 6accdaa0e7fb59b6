"""Another WSGI server answers predictions as TorchServe did: `gunicorn ingress.wsgi:app`."""

import contextlib
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.conformance.archives import fill_store
from tests.conformance.case_list import load_scenes, properties_of
from tests.conformance.compare import differences
from tests.conformance.driving import drive
from tests.conformance.test_conformance import RECORDED, target_of
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.ports import free_ports
from tests.support import eventually
from tests.topology.whole_suite import own_redis

GUNICORN, FLASK = (Path(sys.executable).with_name(name) for name in ("gunicorn", "flask"))
# What handlers are given, what becomes of their answers, and of their failures.
PREDICTIONS = ("rows", "answers", "failures")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def variables_of(scene: str) -> dict[str, str]:
    lines = [line for line in properties_of(scene).splitlines() if "=" in line]
    pairs = [line.split("=", 1) for line in lines if not line.startswith("#")]
    return {f"FERRY_{key.upper()}": value for key, value in pairs if key != "load_models"}


@pytest.fixture
def server(tmp_path):
    """`ferry up`, which registers models and runs them, and the Redis that it uses."""
    config = tmp_path / "config.properties"
    config.write_text(properties_of("main"))
    (tmp_path / "store").mkdir()
    fill_store(tmp_path / "store", tmp_path / "scratch")
    with own_redis() as url:
        running = FerryServer(tmp_path, "--config", str(config), "--redis-url", url)
        running.wait_started()
        try:
            yield running, url
        finally:
            running.process.kill()


def is_ours(difference: str) -> bool:
    """Returns whether the application made the difference; connections are the WSGI server's."""
    return "is_closed:" not in difference and "header connection:" not in difference


def test_gunicorn_answers_the_predictions_of_the_corpus(server, tmp_path):
    # Given
    running, url = server
    port = free_ports(1)
    words = ["--bind", f"127.0.0.1:{port}", "--threads", "8", "--preload", "ingress.wsgi:app"]
    environment = {**variables_of("main"), "FERRY_REDIS_URL": url}
    process = FerryProcess(tmp_path, words, program=GUNICORN, environment=environment)
    target = target_of(running, tmp_path)
    cases = [case for case in load_scenes()["main"] if case.raw is None]
    asked = [case for case in cases if case.group in PREDICTIONS]
    last = cases.index(asked[-1])
    try:
        process.wait_for_line("Listening at")
        # When
        others = replace(target, ports={**target.ports, "inference": port})
        seen = drive(cases[: last + 1], others)
        paths = ("metrics", "models", "")
        urls = [f"http://127.0.0.1:{port}/{path}" for path in paths]
        opened = [requests.get(url, timeout=10).status_code for url in urls]
        # Not Ctrl-C: its handler takes a lock that gunicorn's main thread may hold just then, as
        # the last client has closed its connection, and the worker ends after 30 s only.
        stopped = process.stop(signal.SIGTERM)
    finally:
        process.kill()
    # Then
    found = {
        case.id: differences(RECORDED[case.id]["answers"], seen[case.id], case.differs)
        for case in asked
    }
    wrong = {name: left for name, lines in found.items() if (left := list(filter(is_ours, lines)))}
    assert wrong == {}
    assert len(asked) > 50
    assert stopped.exit_code == 0
    # And management and page stay closed
    assert opened == [200, 404, 405]


def test_flask_runs_it_and_management_and_page_stay_closed(server, tmp_path):
    # Given
    _, url = server
    port = free_ports(1)

    def status_of(path):
        return requests.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code

    def answers():
        with contextlib.suppress(requests.ConnectionError):
            return status_of("/livez") == 200
        return False

    # When
    words = ["--app", "ingress.wsgi", "run", "--port", str(port)]
    environment = {**variables_of("main"), "FERRY_REDIS_URL": url}
    process = FerryProcess(tmp_path, words, program=FLASK, environment=environment)
    try:
        eventually(answers, 30)
        found = [status_of(path) for path in ("/metrics", "/models", "/")]
    finally:
        process.kill()
    # Then
    assert found == [200, 404, 405]
