"""What says where everything is, is whole: CONTRIBUTING.md, and the heads of the packages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where CONTRIBUTING.md names a file without its folder.
FOLDERS = (ROOT, ROOT / "batching" / "store", ROOT / "cli", ROOT / "tests")
FILE = re.compile(r"`([\w/]+\.(?:py|lua))`")


def test_map_names_files_that_are_there():
    # Given
    named = FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    # When
    missing = [name for name in named if not any((one / name).is_file() for one in FOLDERS)]
    # Then
    assert len(named) > 40
    assert missing == []


@pytest.mark.parametrize("package", ["batching", "batching/store", "ingress", "workers"])
def test_head_of_a_package_names_each_of_its_files_once(package):
    # Given
    head = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
    places = (ROOT / package).iterdir()
    there = {place.stem for place in places if place.suffix == ".py" or is_package(place)}
    # When: what comes after a row's title
    rows = [row.strip() for row in head.splitlines() if row.startswith(" ")]
    named = re.findall(r"\w+", " ".join(re.split(r"\s{2,}", row)[-1] for row in rows))
    # Then
    assert sorted(named) == sorted(there - {"__init__", "__main__"})


def is_package(place):
    return (place / "__init__.py").is_file()
