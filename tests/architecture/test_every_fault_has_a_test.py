"""Each row of the fault tables in docs/ names a test, and that test is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = {"F": (ROOT / "docs" / "reliability.md", 47), "B": (ROOT / "docs" / "security.md", 19)}
NAMED_AFTER = re.compile(r"def (test(?:_[fb]\d\d)+)_")


def rows(letter: str) -> dict[int, str]:
    """Row number -> the line of its table, which begins with a comment: `<!--F15, F17-->`."""
    document, _ = TABLES[letter]
    found: dict[int, str] = {}
    for line in document.read_text(encoding="utf-8").splitlines():
        head = line.partition("-->")[0] if line.startswith("| <!--") else ""
        for number in re.findall(rf"\b{letter}(\d+)\b", head):
            found.setdefault(int(number), line)
    return found


def names_of_tests() -> set[str]:
    """`f04`, `b17` and so on: what tests are named after."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for prefix in NAMED_AFTER.findall(path.read_text(encoding="utf-8")):
            names.update(prefix.split("_")[1:])
    return names


@pytest.mark.parametrize("letter", TABLES)
def test_every_fault_has_a_row_and_a_test_named_after_it(letter):
    # Given
    _, count = TABLES[letter]
    documented, tested = rows(letter), names_of_tests()

    # Then
    assert sorted(documented) == list(range(1, count + 1))
    missing = {
        f"{letter}{number}" for number in documented if f"{letter.lower()}{number:02}" not in tested
    }
    assert not missing
