"""What a worker has measured is known at later loads; a file that is no help does no harm."""

import json
import os

import pytest

from workers.handling import handlers
from workers.handling.handlers import FINDINGS_FILE, MOST_FINDINGS, recall_finding

QUESTION = "divide batch_size=8"


class Measured:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.times = 0

    def __call__(self):
        self.times += 1
        return self.answer


def recall(folder, measure, question=QUESTION, sha256="a" * 64):
    return recall_finding(folder / FINDINGS_FILE, sha256, question, measure)


@pytest.mark.parametrize("answer", [True, False])
def test_finding_is_known_to_the_next_worker(tmp_path, answer):
    # Given
    first, second = Measured(answer), Measured(not answer)
    assert recall(tmp_path, first) is answer

    # When / Then
    assert recall(tmp_path, second) is answer
    assert (first.times, second.times) == (1, 0)
    assert [path.name for path in tmp_path.iterdir()] == [FINDINGS_FILE]


def test_other_archive_question_or_machine_is_measured(tmp_path, monkeypatch):
    # Given
    recall(tmp_path, Measured(True))
    measured = Measured(False)

    # When
    answers = [
        recall(tmp_path, measured, sha256="b" * 64),
        recall(tmp_path, measured, "divide batch_size=4"),
    ]
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nCPU part\t: 0xd0c\n")
    monkeypatch.setattr(handlers, "_PROCESSORS", cpuinfo)
    answers.append(recall(tmp_path, measured))

    # Then
    assert answers == [False] * 3
    assert measured.times == 3
    assert f"on={os.cpu_count()} x 0xd0c" in (tmp_path / FINDINGS_FILE).read_text()


def test_failure_is_measured_again(tmp_path):
    # Given
    measured = Measured(None)

    # When / Then
    assert [recall(tmp_path, measured) for _ in range(2)] == [None, None]
    assert measured.times == 2
    assert not (tmp_path / FINDINGS_FILE).exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b'{"\xff": true}',
        lambda _: b"[" * 100_000,
        lambda known: b"[true]" + known,
        lambda known: known.replace(b"false", b"1"),
        lambda known: known.replace(b"false", b"null"),
        lambda known: known.rjust(handlers.MOST_FINDINGS_BYTES + 100),
    ],
    ids=["empty", "not UTF-8", "deep", "list", "number", "null", "large"],
)
def test_file_with_anything_else_is_measured_again_and_replaced(tmp_path, damage):
    # Given
    file = tmp_path / FINDINGS_FILE
    recall(tmp_path, Measured(False))
    file.write_bytes(damage(file.read_bytes()))
    measured = Measured(True)

    # When / Then
    assert [recall(tmp_path, measured) for _ in range(2)] == [True, True]
    assert measured.times == 1
    assert list(json.loads(file.read_text()).values()) == [True]


@pytest.mark.parametrize("folder", ["missing", "file", "/dev/full"])
def test_folder_that_cannot_be_written_to_costs_the_memory_only(tmp_path, caplog, folder):
    # Given
    (tmp_path / "file").touch()
    measured = Measured(True)

    # When / Then
    assert [recall(tmp_path / folder, measured) for _ in range(2)] == [True, True]
    assert measured.times == 2
    assert "measured again at the next load" in caplog.text


def test_file_holds_the_newest_findings_and_stays_small(tmp_path):
    # Given
    last = MOST_FINDINGS + 4
    for number in range(last + 1):
        recall(tmp_path, Measured(True), f"question {number}")
    measured = Measured(True)

    # When
    recall(tmp_path, measured, f"question {last - MOST_FINDINGS + 1}")
    assert measured.times == 0
    recall(tmp_path, measured, "question 4")

    # Then
    assert measured.times == 1
    assert len(json.loads((tmp_path / FINDINGS_FILE).read_text())) == MOST_FINDINGS


def test_workers_that_measure_at_once_keep_what_the_other_one_found(tmp_path):
    # Given one that writes while the other one, which has read the file before, measures
    def measure_later():
        recall(tmp_path, Measured(True))
        return False

    recall(tmp_path, measure_later, sha256="b" * 64)

    # Then
    measured = Measured(None)
    assert recall(tmp_path, measured) is True
    assert recall(tmp_path, measured, sha256="b" * 64) is False
    assert measured.times == 0
