"""The request's way in docs/architecture.md leads through modules that can be imported."""

import importlib
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"
MAX_LINES = 170
MODULE = re.compile(r"`((?:batching|ingress|workers)/[\w/]+)\.py`")


def sections():
    """Heading -> its text, of the ways that the document describes."""
    text = DOCUMENT.read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def modules_on_the_way():
    ways = (
        "A request, there and back",
        "A job",
        "A registration",
        "A death, a client that leaves",
    )
    named = (name for way in ways for name in MODULE.findall(sections()[way]))
    return sorted({name.replace("/", ".") for name in named})


@pytest.mark.parametrize("module", modules_on_the_way())
def test_module_on_a_way_can_be_imported(module):
    # When / Then
    assert importlib.import_module(module)


def test_document_is_short_and_answers_ten_questions():
    # Given
    questions = sections()["Where would I change …?"]
    # Then
    assert len(DOCUMENT.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert len(re.findall(r"^\| an? ", questions, flags=re.MULTILINE)) == 10
