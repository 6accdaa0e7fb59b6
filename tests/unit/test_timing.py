"""Bars that are missed because the host was busy with others."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.timing import stolen_share

ROOT = Path(__file__).parents[2]
MISSES_ITS_BAR = """
import itertools
import psutil
from tests.timing import assert_within
from tests.unit.test_timing import Times

seconds = itertools.count()

def look():
    # From look to look a second of one processor, of which the host took {stolen} s.
    looks = next(seconds)
    return Times((looks * (1.0 - {stolen}), 0, 0, 0, 0, 0, 0, looks * {stolen}))

psutil.cpu_times = look

def test_misses_its_bar():
    assert_within(2.0, 1.0)
"""


class Times(tuple):
    """What `psutil.cpu_times` gives on Linux, of which the eighth field has its name here."""

    @property
    def steal(self):
        return self[7]


def outcome(tmp_path, stolen, *options):
    file = tmp_path / "test_misses.py"
    file.write_text(MISSES_ITS_BAR.format(stolen=stolen))
    own = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *own, *options, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stolen", "told"), [(0.0, "1 failed, 2 rerun"), (0.5, "1 skipped, 2 rerun")]
)
def test_missed_bar_counts_where_the_machine_was_there(tmp_path, stolen, told):
    # When
    printed = outcome(tmp_path, stolen)
    # Then
    assert told in printed
    assert "2 is more than 1" in printed


@pytest.mark.slow
def test_missed_bar_counts_in_the_long_forms_in_any_case(tmp_path):
    # When / Then
    assert "1 failed" in outcome(tmp_path, 0.5, "--reruns", "0")


def test_share_is_of_all_processors():
    # Given 10 s of two processors, of which the host took 1 s
    before = Times((8.0, 0, 2.0, 10.0, 0, 0, 0, 3.0))
    after = Times((14.0, 0, 5.0, 20.0, 0, 0, 0, 4.0))
    # When / Then
    assert stolen_share(before, after) == pytest.approx(0.05)


def test_nothing_is_stolen_where_the_system_does_not_say():
    # Given
    times = SimpleNamespace(user=1.0, system=1.0, idle=1.0)
    # When / Then
    assert stolen_share(times, times) == 0.0
