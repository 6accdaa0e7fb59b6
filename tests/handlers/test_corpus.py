"""Handlers in the styles of TorchServe's users, unchanged, answer as they do under TorchServe."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.ferry_process import FerryServer, eventually
from tests.e2e.metrics_text import Scrape
from tests.handlers.archives import CORPUS, all_archives
from tests.handlers.driving import Answers, Server, drive
from tests.handlers.record import RECORDING
from tests.unit.wheels import offline, write_wheel
from workers.doctor.examination import examine

RECORDED: Answers = json.loads(RECORDING.read_text(encoding="utf-8"))["answers"]
# Kernels of other machines round differently.
TOLERANCE = 1e-4
DRIVE_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    """One server for the whole corpus; it installs requirements and shows every metric."""
    folder = tmp_path_factory.mktemp("corpus")
    write_wheel(folder / "wheels")
    running = FerryServer(
        folder,
        "--install-py-dep-per-model",
        "--model-metrics-auto-detect",
        environment=offline(folder / "wheels"),
    )
    running.wait_started()
    try:
        yield running
        running.process.stop_cleanly()
    finally:
        running.process.kill()


@pytest.fixture(scope="module")
def seen(server: FerryServer) -> dict[str, Any]:
    """Every answer, and what /metrics showed while the models were there."""
    scrapes: list[Scrape] = []

    def on_archive(name: str) -> None:
        if name == "refusing":  # in one group with `measured`, and after it
            calls = {"name": "CorpusCalls_total", "Who": "me"}
            assert eventually(lambda: Scrape(server).value(**calls) == 2, 10)
            scrapes.append(Scrape(server))

    answers = drive(Server(server.inference, server.management), server.store, on_archive)
    return {"answers": answers, "scrape": scrapes[0]}


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.timeout(DRIVE_TIMEOUT_S)  # the first one waits for all answers
@pytest.mark.parametrize("name", RECORDED)
def test_handler_answers_as_under_torchserve(name: str, seen: dict[str, Any]) -> None:
    # Given what TorchServe answered / When
    expected, found = RECORDED[name], seen["answers"][name]

    # Then
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert {**mine, "text": None} == {**theirs, "text": None}
        assert value_of(mine.get("text")) == approximately(value_of(theirs.get("text")))


@pytest.mark.slow
@pytest.mark.conformance
def test_recording_has_every_question_of_the_corpus() -> None:
    # When
    asked = {f"{archive.name}/{ask.name}" for archive in all_archives() for ask in archive.asks}

    # Then
    assert asked == set(RECORDED)
    sources = {path.stem for path in CORPUS.glob("*.py")}
    assert sources <= {archive.name for archive in all_archives()}
    assert len(sources) >= 20


@pytest.mark.slow
@pytest.mark.timeout(DRIVE_TIMEOUT_S)
def test_metrics_of_the_corpus_are_shown(seen: dict[str, Any]) -> None:
    # Given
    scrape: Scrape = seen["scrape"]
    model = {"ModelName": "measured", "Level": "Model"}

    # When / Then
    assert scrape.value("CorpusCalls_total", Who="me") == 2
    assert scrape.value("CorpusRows_total", **model) == 2
    assert scrape.value("CorpusErrors_total", Level="Error") == 2
    assert scrape.value("CorpusTime", **model) == 12.5
    assert scrape.value("CorpusSizes_count", ModelName="measured") == 2
    assert scrape.value("CorpusValue", **model) == 7


@pytest.mark.slow
@pytest.mark.parametrize("archive", all_archives(), ids=lambda archive: archive.name)
def test_doctor_finds_no_problem_with_handlers_that_run(archive, tmp_path) -> None:
    # When
    report = examine(tmp_path / archive.write(tmp_path), is_installing=True)

    # Then
    assert report.will_run, report.findings


def value_of(text: str | None) -> Any:
    """JSON as its value, anything else as it is."""
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def approximately(value: Any) -> Any:
    """The value, its numbers with a tolerance, at any depth."""
    if isinstance(value, dict):
        return {key: approximately(item) for key, item in value.items()}
    if isinstance(value, list):
        return [approximately(item) for item in value]
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE) if is_number else value
