"""The English and the length of the pages for users."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
# Not the decisions, nor what is made of the code.
PAGES = sorted((*DOCS.glob("*.md"), *DOCS.glob("recipes/*.md")))
MOST_WORDS = 42_000
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADER = re.compile(r"^(\|.*\|)\n\|[-:| ]+\|$", re.MULTILINE)
# Faults of the tests, as F30 and B13, and promises, as I9.
TEST_CODE = re.compile(r"\b[BFIN]\d{1,2}\b")
TO_GLOSSARY = re.compile(r"\[[^\]]*\]\((?:\.\./)?glossary\.md[^)]*\)")
# Words with a meaning of their own here, which no dictionary has.
PRIVATE = ("seats?", "doors?", "beats?", "siblings?", "suspects?", "collectors?", "held against")


def prose(page):
    """Returns the text of the page without code."""
    return CODE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))


def private_words(text):
    """Returns the private words whose first use is no link to the glossary."""
    links = [match.span() for match in TO_GLOSSARY.finditer(text)]
    firsts = (re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in PRIVATE)
    return [
        first[0]
        for first in firsts
        if first and not any(start <= first.start() < end for start, end in links)
    ]


def empty_headers(text):
    cells = ((row, row.strip("|").split("|")) for row in HEADER.findall(text))
    return [row for row, names in cells if not all(name.strip() for name in names)]


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


@each_page
def test_columns_of_tables_have_names(page):
    # Given code as it stands: a name may be code
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    # Then
    assert empty_headers(text) == []


@each_page
def test_page_has_no_codes_of_tests(page):
    assert TEST_CODE.findall(prose(page)) == []


@each_page
def test_private_words_are_explained_at_their_first_use(page):
    if page.name != "glossary.md":
        assert private_words(prose(page)) == []


def test_pages_are_short_together():
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= MOST_WORDS


def test_what_is_looked_for_is_found():
    assert empty_headers("| | b |\n|---|---|\n| 1 | 2 |\n") == ["| | b |"]
    assert empty_headers("| a | b |\n|---|---|\n| 1 | |\n") == []
    assert TEST_CODE.findall("F30, B13 and I9, not FP32 or H100") == ["F30", "B13", "I9"]
    linked = "[Seats](glossary.md#seat) are free; its siblings, and other seats"
    assert private_words(linked) == ["siblings"]
