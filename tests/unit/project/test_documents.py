"""README and the pages of docs/: links lead somewhere, and figures are those of the records."""

import re
from pathlib import Path

import pytest

from benchmarks import summary
from benchmarks.measuring.records import with_block
from benchmarks.page_picture import MAX_BYTES
from benchmarks.summary import batching, ratios

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    }
)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
MOST_README_LINES = 170


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def is_there(page, link):
    place, _, anchor = link.partition("#")
    target = (page.parent / place).resolve() if place else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_lead_somewhere(page):
    # Given
    text = CODE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))
    links = [link for link in LINK.findall(text) if "://" not in link and "mailto:" not in link]
    # When / Then
    assert [link for link in links if not is_there(page, link)] == []


def test_figures_of_the_pages_are_those_of_the_records():
    text = summary.README.read_text(encoding="utf-8")
    for name, expected in summary.written().items():
        assert with_block(text, name, expected) == text, f"{name}: make charts"


@pytest.mark.parametrize(
    ("chart", "labels"),
    [
        ("performance", lambda: [f"{ratio:.2f} x" for ratio in ratios().values()]),
        ("batching", lambda: [f"{rate:,.0f}" for rate in batching().values()]),
    ],
)
def test_charts_are_drawn_from_the_records(chart, labels):
    text = (ROOT / "docs" / "images" / f"{chart}.svg").read_text(encoding="utf-8")
    assert [label for label in labels() if f">{label}</text>" not in text] == [], "make charts"


def test_pictures_are_small_and_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size <= MAX_BYTES, picture.name
        assert f"images/{picture.name}" in shown, picture.name


def test_readme_is_short_and_nothing_waits_to_be_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= MOST_README_LINES
    assert [page for page in PAGES if "Not measured yet" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("docs/*.md", 40_200),
        ("docs/recipes/*.md", 1_800),
        ("docs/index.md", 250),
        ("docs/glossary.md", 500),
    ],
)
def test_pages_written_by_hand_are_short(pattern, most):
    words = [len(page.read_text(encoding="utf-8").split()) for page in ROOT.glob(pattern)]
    assert 0 < sum(words) <= most
