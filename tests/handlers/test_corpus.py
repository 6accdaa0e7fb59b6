"""Handlers in the styles of TorchServe's users, unchanged, answer as they do under TorchServe."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.ferry_process import FerryServer
from tests.handlers.archives import CORPUS, all_archives
from tests.handlers.driving import Answers, Server, drive
from tests.handlers.record import RECORDING
from tests.support import came_true
from tests.unit.workers.archives.wheels import offline, write_wheel
from workers.examination import examine

# One model of the corpus needs it, and the newest Python has none yet.
pytest.importorskip("onnxruntime")

_DOCUMENT = json.loads(RECORDING.read_text(encoding="utf-8"))
RECORDED: Answers = _DOCUMENT["answers"]
METRICS: list[str] = _DOCUMENT["metrics"]
# Answers that differ on purpose, with status and text: the client is told its mistake.
BETTER = {"image_classifier/no picture": (400, "Input is not a readable image: ")}
# Kernels of other machines round differently.
TOLERANCE = 1e-4
DRIVE_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    """Runs one server for the whole corpus; it installs requirements and shows every metric."""
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
    """Gives every answer, and the lines of /metrics while the models were there."""
    target = Server(server.inference, server.management, server.metrics)
    lines: list[str] = []

    def on_archive(name: str) -> None:
        if name == "refusing":  # in one group with `measured`, and after it
            # Does not fail here: another test compares the lines, and all tests need the answers.
            came_true(lambda: target.scrape() == METRICS, 10)
            lines[:] = target.scrape()

    return {"answers": drive(target, server.store, on_archive), "metrics": lines}


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.timeout(DRIVE_TIMEOUT_S)  # the first one waits for all answers
@pytest.mark.parametrize("name", [name for name in RECORDED if name not in BETTER])
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
@pytest.mark.timeout(DRIVE_TIMEOUT_S)
@pytest.mark.parametrize("name", BETTER)
def test_answer_that_differs_on_purpose_is_the_better_one(name: str, seen: dict[str, Any]) -> None:
    # Given
    status, text = BETTER[name]
    (theirs,), (mine,) = RECORDED[name], seen["answers"][name]

    # When / Then
    assert theirs["status"] != status
    assert mine["status"] == status
    assert text in mine["text"]


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
@pytest.mark.conformance
@pytest.mark.timeout(DRIVE_TIMEOUT_S)
def test_metrics_are_shown_as_by_torchserve(seen: dict[str, Any]) -> None:
    # When / Then: names, types, texts, labels in their order, values
    assert seen["metrics"] == METRICS


@pytest.mark.slow
@pytest.mark.parametrize("archive", all_archives(), ids=lambda archive: archive.name)
def test_doctor_finds_no_problem_with_handlers_that_run(archive, tmp_path) -> None:
    # When
    report = examine(tmp_path / archive.write(tmp_path), is_installing=True)

    # Then
    assert report.will_run, report.findings


def value_of(text: str | None) -> Any:
    """Reads JSON; returns anything else as it is."""
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def approximately(value: Any) -> Any:
    """Gives the numbers of a value a tolerance, at any depth."""
    if isinstance(value, dict):
        return {key: approximately(item) for key, item in value.items()}
    if isinstance(value, list):
        return [approximately(item) for item in value]
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE) if is_number else value
