"""The English and the length of the pages for users."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
# Not the decisions, nor what is made of the code.
PAGES = sorted((*DOCS.glob("*.md"), *DOCS.glob("recipes/*.md")))
MOST_WORDS = 42_000
UNSEEN = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADER = re.compile(r"^(\|.*\|)\n\|[-:| ]+\|$", re.MULTILINE)
# Faults of the tests, as F30 and B13, and promises, as I9.
TEST_CODE = re.compile(r"\b[BFIN]\d{1,2}\b")
# Words with a meaning that is ours only: ordinary ones are better, a link to the glossary will do.
PRIVATE = (
    *("beats?", "collectors?", "doors?", "held against", "promise[sd]?", "seats?"),
    *("siblings?", "suspects?"),
)
# A link to the glossary, or a line of a list that explains the word itself.
EXPLAINED = re.compile(r"\[[^\]]*\]\((?:\.\./)?glossary\.md[^)]*\)|^- \*\*[^*]+\*\*:", re.MULTILINE)


def text_of(page):
    """Returns what a reader sees of the page, without blocks of code."""
    return UNSEEN.sub("", page.read_text(encoding="utf-8"))


def prose_of(page):
    return CODE.sub("", text_of(page))


def empty_headers(text):
    return [
        row
        for row in HEADER.findall(text)
        if not all(name.strip() for name in row.strip("|").split("|"))
    ]


def unexplained(text):
    """Returns the private words that the text does not explain where it first has them."""
    explained = [match.span() for match in EXPLAINED.finditer(text)]
    firsts = (re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in PRIVATE)
    return [
        first[0]
        for first in firsts
        if first and not any(start <= first.start() < end for start, end in explained)
    ]


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


@each_page
def test_columns_of_tables_have_names(page):
    assert empty_headers(text_of(page)) == []


@each_page
def test_page_has_no_codes_of_tests(page):
    assert TEST_CODE.findall(prose_of(page)) == []


@each_page
def test_private_words_are_explained_at_their_first_use(page):
    assert unexplained(prose_of(page)) == []


def test_pages_are_short_together():
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= MOST_WORDS


def test_what_is_looked_for_is_found():
    assert empty_headers("| | b |\n|---|---|\n| 1 | 2 |\n") == ["| | b |"]
    assert empty_headers("| a | b |\n|---|---|\n| 1 | |\n") == []
    assert TEST_CODE.findall("F30, B13 and I9, not FP32 or H100") == ["F30", "B13", "I9"]
    text = (
        "[Seats](glossary.md#seat) are free, and other seats.\n- **beat**: a sign\nIts siblings\n"
    )
    assert unexplained(text) == ["siblings"]
