"""Finds the examples of a page, to run them as they stand."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def only_block(page: str, kind: str, heading: str = "") -> str:
    """Returns the one block of this language on a page, or below one of its headings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [block] = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)
