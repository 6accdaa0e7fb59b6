"""Every request of the list is answered as TorchServe 0.12 answered it, or as the list says.

One server per scene answers its list, in its order; then each case is a test. What TorchServe
answered is in `recordings/`, made by `python -m tests.conformance.record` and never edited.
"""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.archives import fill_store
from tests.conformance.case_list import HERE, Case, load_reasons, load_scenes, properties_of
from tests.conformance.compare import differences
from tests.conformance.driving import Seen, drive
from tests.conformance.wire import Target
from tests.e2e.ferry_process import FerryServer

SCENES = load_scenes()
CASES = [case for cases in SCENES.values() for case in cases]
KEY_FILE = "key_file.json"
RECORDINGS = HERE / "recordings"
DOCUMENT = HERE.parents[1] / "docs" / "torchserve-compatibility.md"

pytestmark = pytest.mark.conformance


# What TorchServe was asked and answered, by case.
RECORDED: dict[str, dict[str, Any]] = {
    name: entry
    for path in sorted(RECORDINGS.glob("*/*.json"))
    for name, entry in json.loads(path.read_text("utf-8"))["cases"].items()
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Seen]]:
    """Plays the whole list; gives our answers by scene, and a scene may have broken off."""
    folders = {scene: tmp_path_factory.mktemp(scene) for scene in SCENES}
    # The main scene is as long as all others together.
    with ThreadPoolExecutor(2) as pool:
        return {
            scene: pool.submit(play, scene, SCENES[scene], folders[scene])
            for scene in sorted(SCENES, key=lambda scene: -len(SCENES[scene]))
        }


def play(scene: str, cases: list[Case], folder: Path) -> Seen:
    """Starts a server, plays one scene, and stops the server; returns our answers."""
    config = folder / "config.properties"
    config.write_text(properties_of(scene))
    (folder / "store").mkdir()
    fill_store(folder / "store", folder / "scratch")
    is_locked = "token_authorization=true" in properties_of(scene)
    keys = ("--key-file", str(folder / KEY_FILE)) if is_locked else ()
    # As `ferry torchserve` has it: the root answers as TorchServe's.
    server = FerryServer(folder, "--config", str(config), *keys, "--page", "off")
    try:
        server.wait_started()
        answers = drive(cases, target_of(server, folder))
        server.process.stop_cleanly()
        return answers
    finally:
        server.process.kill()


def target_of(server: FerryServer, folder: Path) -> Target:
    names = ("inference", "management", "metrics")
    ports = {name: server.port + index for index, name in enumerate(names)}
    return Target(ports, {"store": str(folder / "store")}, folder / KEY_FILE)


# The first test waits for the whole list.
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES)
def test_scene_is_played_to_its_end(scene: str, played: dict[str, Future[Seen]]) -> None:
    # Then a server started, was asked everything, and stopped with nothing left behind
    assert set(played[scene].result()) == {case.id for case in SCENES[scene]}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answer_is_torchserves(case: Case, played: dict[str, Future[Seen]]) -> None:
    # Given TorchServe's answer, and the differences that are on purpose
    answers = RECORDED[case.id]["answers"]
    if played[case.scene].exception() is not None:
        pytest.skip(f"the scene {case.scene} broke off")

    # When our answer is held against it
    lines = differences(answers, played[case.scene].result()[case.id], case.differs)

    # Then nothing else differs
    assert not lines, "\n".join([case.send or str(case.raw), *lines])


def test_recordings_are_of_these_requests() -> None:
    # Given the list, and the requests that were recorded
    listed = {case.id: json.loads(json.dumps(case.request())) for case in CASES}
    asked = {name: entry["request"] for name, entry in RECORDED.items()}

    # Then they are the same: a changed case needs a new recording
    assert asked == listed
    assert len(CASES) == len(listed) >= 150
    assert f" {len(CASES)} requests" in DOCUMENT.read_text(encoding="utf-8")


def test_reasons_are_all_used_and_documented() -> None:
    # Given the reasons for differences, and those that cases name
    reasons = load_reasons()
    named = {difference.because for case in CASES for difference in case.differs}

    # Then they are the same, and the document has each of them
    assert named == set(reasons)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in reasons if f"`{name}`" not in text] == []


def test_differences_are_found_wherever_they_are() -> None:
    # Given an answer, and others that differ in one place each
    answer = {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "is_closed": False,
        "body": ["{", '  "a": 1,', '  "b": 2', "}", ""],
    }
    others = {
        "status": {"status": 201},
        "is_closed": {"is_closed": True},
        "header content-type": {"headers": {}},
        "body.a": {"body": ["{", '  "a": 7,', '  "b": 2', "}", ""]},
        "body keys": {"body": ["{", '  "b": 2,', '  "a": 1', "}", ""]},
        "layout": {"body": ['{"a": 1, "b": 2}']},
    }

    # Then each is found, and none in the answer itself
    assert differences([answer], [answer], []) == []
    for place, change in others.items():
        lines = differences([answer], [answer | change], [])
        assert any(line.startswith(f"{place}:") for line in lines), place
