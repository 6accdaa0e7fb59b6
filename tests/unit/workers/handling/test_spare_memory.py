"""A worker keeps the memory that its batches need, and gives back what a rare one took."""

import os
import subprocess
import sys

import pytest

from workers.handling.worker import MEMORY_LOOK_S, MEMORY_PAUSE_S, SpareMemory
from workers.slots.worker_process import ALLOCATOR

MB = 1024 * 1024


class Process:
    """Holds what was taken until it is given back, as glibc does in a worker."""

    def __init__(self, spare_mb=64):
        self.used_mb = self.taken_mb = 500
        self.given_back = 0
        self.now_s = 0.0
        self.spare = SpareMemory(spare_mb * MB, lambda: self.taken_mb * MB, self.give_back)

    def give_back(self):
        self.given_back += 1
        self.taken_mb = self.used_mb

    def pass_time(self, seconds, batch_mb=0):
        """Lets time pass, idle or with batches that take so much."""
        for _ in range(round(seconds / MEMORY_LOOK_S)):
            self.taken_mb = max(self.taken_mb, self.used_mb + batch_mb)
            self.now_s += MEMORY_LOOK_S
            self.spare.has_run |= batch_mb > 0
            if self.now_s >= self.spare.look_at_s:
                self.spare.look(self.now_s)


@pytest.fixture
def process():
    """A worker that has run ordinary batches for a while."""
    started = Process()
    started.pass_time(5 * MEMORY_LOOK_S, 100)
    started.given_back = 0
    return started


def test_memory_of_ordinary_batches_is_fetched_again_at_most_once_a_minute(process):
    # When
    process.pass_time(10 * MEMORY_PAUSE_S, 100)
    # Then
    assert process.taken_mb == 600
    assert 9 <= process.given_back <= 12


@pytest.mark.parametrize(
    ("looks", "others_mb"),
    [(1, 0), (1, 100), (3, 100)],
    ids=["idle", "under load", "several in a row"],
)
def test_memory_of_rare_batches_is_given_back_soon(process, looks, others_mb):
    # When
    process.pass_time(looks * MEMORY_LOOK_S, 1000)
    process.pass_time(looks * MEMORY_LOOK_S, others_mb)
    # Then
    assert process.taken_mb <= 500 + others_mb


def test_memory_of_a_rare_batch_among_the_first_is_given_back_soon():
    # Given
    started = Process()
    # When
    started.pass_time(MEMORY_LOOK_S, 0)
    started.pass_time(MEMORY_LOOK_S, 1000)
    started.pass_time(3 * MEMORY_LOOK_S, 0)
    # Then
    assert started.taken_mb == 500


def test_memory_of_a_rare_batch_right_after_another_one_is_given_back_within_a_minute(process):
    for soon_s in (MEMORY_LOOK_S, MEMORY_PAUSE_S):
        # When
        process.pass_time(MEMORY_LOOK_S, 1000)
        process.pass_time(soon_s)
        # Then
        assert process.taken_mb == 500


def test_memory_that_is_in_use_is_asked_for_once(process):
    # Given a handler that keeps what it has taken
    process.used_mb = process.taken_mb = 2000
    # When
    process.pass_time(MEMORY_PAUSE_S, 0)
    # Then
    assert process.given_back <= 1


def test_nothing_is_given_back_when_the_setting_says_so():
    # Given
    keeping = Process(spare_mb=0)
    # When
    keeping.pass_time(2 * MEMORY_PAUSE_S, 1000)
    # Then
    assert (keeping.given_back, keeping.taken_mb) == (0, 1500)


SCRIPT = """
from workers.handling.worker import SpareMemory, taken_bytes
spare = SpareMemory(64 * 1024 * 1024)
before = taken_bytes()
large = [bytes(100 * 1024 * 1024), [bytes(4000) for _ in range(40_000)]]
taken = taken_bytes()
del large
kept = taken_bytes()
spare.look(0.0)
print(*[(size - before) // 2**20 for size in (taken, kept, taken_bytes())])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux")  # noqa: PTH110
def test_large_and_small_pieces_are_given_back_to_the_system():
    # When, in a process with a worker's allocator
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **ALLOCATOR, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    taken_mb, kept_mb, left_mb = map(int, done.stdout.split())
    # Then
    assert min(taken_mb, kept_mb) > 150
    assert left_mb < 20
