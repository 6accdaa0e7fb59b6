"""What a worker has measured is known at later loads; a file that is no help does no harm."""

import json
import os
import threading

import pytest

from workers.handling import findings as module
from workers.handling.findings import FILE, MOST_BYTES, MOST_FINDINGS, Findings

QUESTION = "divide batch_size=8"


class Measured:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.times = 0

    def __call__(self):
        self.times += 1
        return self.answer


@pytest.mark.parametrize("answer", [True, False])
def test_finding_is_known_to_the_next_worker(tmp_path, answer):
    # Given
    first, second = Measured(answer), Measured(not answer)
    assert Findings(tmp_path, "a" * 64).recall(QUESTION, first) is answer

    # When
    known = Findings(tmp_path, "a" * 64).recall(QUESTION, second)

    # Then
    assert known is answer
    assert (first.times, second.times) == (1, 0)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_other_archive_question_or_machine_is_measured(tmp_path, monkeypatch):
    # Given
    Findings(tmp_path, "a" * 64).recall(QUESTION, Measured(True))
    measured = Measured(False)

    # When
    answers = [
        Findings(tmp_path, "b" * 64).recall(QUESTION, measured),
        Findings(tmp_path, "a" * 64).recall("divide batch_size=4", measured),
    ]
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nCPU part\t: 0xd0c\n")
    monkeypatch.setattr(module, "_PROCESSORS", cpuinfo)
    answers.append(Findings(tmp_path, "a" * 64).recall(QUESTION, measured))

    # Then
    assert answers == [False] * 3
    assert measured.times == 3
    assert f"on={os.cpu_count()} x 0xd0c" in (tmp_path / FILE).read_text()


def test_failure_is_measured_again(tmp_path):
    # Given
    measured = Measured(None)

    # When
    answers = [Findings(tmp_path, "a" * 64).recall(QUESTION, measured) for _ in range(2)]

    # Then
    assert answers == [None, None]
    assert measured.times == 2
    assert not (tmp_path / FILE).exists()


def altered(known, value):
    return json.dumps(dict.fromkeys(known, value)).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\xff\x00{",
        lambda _: b'{"\xff": true}',
        lambda _: b"[" * 100_000,
        lambda known: b"[true]" + json.dumps(known).encode(),
        lambda known: altered(known, 1),
        lambda known: altered(known, "true"),
        lambda known: altered(known, None),
        lambda known: json.dumps(known).encode().rjust(MOST_BYTES + 100),
    ],
    ids=["empty", "bytes", "not UTF-8", "deep", "list", "number", "text", "null", "large"],
)
def test_file_with_anything_else_is_measured_again_and_replaced(tmp_path, damage):
    # Given
    file = tmp_path / FILE
    Findings(tmp_path, "a" * 64).recall(QUESTION, Measured(False))
    file.write_bytes(damage(json.loads(file.read_text())))
    measured = Measured(True)

    # When
    answers = [Findings(tmp_path, "a" * 64).recall(QUESTION, measured) for _ in range(2)]

    # Then
    assert answers == [True, True]
    assert measured.times == 1
    assert list(json.loads(file.read_text()).values()) == [True]


@pytest.mark.parametrize("folder", ["missing", "file", "/dev/full"])
def test_folder_that_cannot_be_written_to_costs_the_memory_only(tmp_path, caplog, folder):
    # Given
    (tmp_path / "file").touch()
    measured = Measured(True)

    # When
    answers = [Findings(tmp_path / folder, "a" * 64).recall(QUESTION, measured) for _ in range(2)]

    # Then
    assert answers == [True, True]
    assert measured.times == 2
    assert "measured again at the next load" in caplog.text


def test_file_holds_the_newest_findings_and_stays_small(tmp_path):
    # Given
    findings = Findings(tmp_path, "a" * 64)
    last = MOST_FINDINGS + 4
    for number in range(last + 1):
        findings.recall(f"question {number}", Measured(True))
    measured = Measured(True)

    # When
    findings.recall(f"question {last - MOST_FINDINGS + 1}", measured)
    assert measured.times == 0
    findings.recall("question 4", measured)

    # Then
    assert measured.times == 1
    assert len(json.loads((tmp_path / FILE).read_text())) == MOST_FINDINGS


def test_workers_that_measure_at_once_keep_what_the_other_one_found(tmp_path):
    # Given two that both read the file before either writes it
    both = threading.Barrier(2, timeout=10)
    first_is_done = threading.Event()

    def measure_first():
        both.wait()
        return True

    def measure_later():
        both.wait()
        assert first_is_done.wait(10)
        return False

    def load_first():
        Findings(tmp_path, "a" * 64).recall(QUESTION, measure_first)
        first_is_done.set()

    # When
    thread = threading.Thread(target=load_first)
    thread.start()
    Findings(tmp_path, "b" * 64).recall(QUESTION, measure_later)
    thread.join()

    # Then
    measured = Measured(None)
    assert Findings(tmp_path, "a" * 64).recall(QUESTION, measured) is True
    assert Findings(tmp_path, "b" * 64).recall(QUESTION, measured) is False
    assert measured.times == 0
