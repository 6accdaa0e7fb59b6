"""CONTRIBUTING.md says where everything is: each file that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Where it names a file without its folder.
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
