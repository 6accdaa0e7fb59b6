"""README and the pages of docs/: links lead somewhere, and figures are those of the records."""

import re
from pathlib import Path

import pytest

from batching.models.spec import PARAMETERS
from batching.settings.settings import SETTINGS
from batching.store.ingress_queue import USUAL_PATIENCE
from batching.store.registry.catalog import RESTORED_WITHIN_S
from benchmarks import summary
from benchmarks.measuring.records import with_block
from benchmarks.summary import batching, ratios
from ingress.http1.connection import HALF_CLOSED_S, MAX_WAITING
from ingress.http1.heads import MAX_AROUND_BYTES
from ingress.jobs.job_service import KEEP_RANGE_S, LONGEST_S
from ingress.predictions.prediction_service import MAX_LINES
from workers.handling.spare_memory import MOST_PAUSE_S
from workers.slots.deadline import WAIT_S

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
# `unread_timeout` (30 s), but not the sum of two: `queue_timeout` and `response_timeout` (240 s).
NAMED_DEFAULT = re.compile(r"(?<! and )`(\w+)`\s\((\d[\d,.]*)(?: (s|million|MiB))?[,;)]")
DAY_S = 86_400
# Page -> what it says of a number that is no setting.
NUMBERS = [
    ("handlers.md", f"interpreter's lock, is ended after {WAIT_S:.0f} s"),
    ("operations.md", f"or {MOST_PAUSE_S:.0f} s if it ran right after another one"),
    ("operations.md", f"at most {MAX_LINES} a second of predictions"),
    ("operations.md", f"if {USUAL_PATIENCE.resubmit_share:.0%} of its deadline is left"),
    ("reliability.md", f"less than {USUAL_PATIENCE.resubmit_share:.0%} of the deadline is left"),
    ("reliability.md", f"no node is back within {RESTORED_WITHIN_S} s"),
    ("reliability.md", f"499 after {HALF_CLOSED_S} s"),
    ("security.md", f"wait for {LONGEST_S / DAY_S:.0f} days, and be kept for"),
    ("security.md", f"be kept for {KEEP_RANGE_S[1] / DAY_S:.0f} more"),
    ("security.md", f"{MAX_WAITING} requests at a time on one connection"),
    ("security.md", f"outside its body is limited to {MAX_AROUND_BYTES / 2**20:.0f} MiB"),
    ("configuration.md", f"if it comes in some, may have {MAX_AROUND_BYTES / 2**20:.0f} MiB"),
]
UNITS = {"": 1, "s": 1, "million": 10**6, "MiB": 2**20}


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


def test_defaults_that_pages_name_are_those_of_the_settings():
    # Given
    defaults = {it.word: it.default for it in PARAMETERS} | {it.key: it.default for it in SETTINGS}
    named = [
        (page.name, name, float(number.replace(",", "")) * UNITS[unit])
        for page in PAGES
        for name, number, unit in NAMED_DEFAULT.findall(page.read_text(encoding="utf-8"))
        if name in defaults
    ]
    # Then
    assert len(named) > 10
    assert [(page, name, it) for page, name, it in named if it != defaults[name]] == []


@pytest.mark.parametrize(("page", "words"), NUMBERS)
def test_number_that_a_page_names_is_that_of_the_code(page, words):
    assert words in " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


def test_readme_is_short_and_nothing_waits_to_be_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= MOST_README_LINES
    assert [page for page in PAGES if "Not measured yet" in page.read_text(encoding="utf-8")] == []
