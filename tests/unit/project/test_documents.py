"""README and the pages of docs/: links, commands, settings and figures are those that there are."""

import json
import re
from pathlib import Path

import click
import pytest

from batching.models.spec import PARAMETERS
from batching.settings.settings import SETTINGS
from benchmarks import summary
from benchmarks.measuring.records import with_block
from benchmarks.pictures import MAX_BYTES
from ferry.main import main
from tests.chaos.promises import DOCUMENT, RESULTS, with_table

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# Pages for users: not the decisions, nor what is made of the code.
USERS = sorted((*DOCS.glob("*.md"), *DOCS.glob("recipes/*.md")))
COMMANDS = sorted(
    {ROOT / "README.md", *USERS, *ROOT.glob("examples/*/README.md"), *ROOT.glob("packages/*/*.md")}
)
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    }
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {4}.*\n)+", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
CODE = re.compile(r"`[^`\n]*`")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
HEADER = re.compile(r"^(\|.*\|)\n\|[-:| ]+\|$", re.MULTILINE)
# At the start of a line, of a command within one, or of a code span.
COMMAND = re.compile(
    r"(?:^|\$\(|&& |; |\| |\bdo |\bexec )\s*ferry ([a-z][^|;&)#\n]*)", re.MULTILINE
)
# Faults of the tests, as F30 and B13, and promises, as I9.
TEST_CODE = re.compile(r"\b[BFIN]\d{1,2}\b")
# Words with a meaning that is ours only: ordinary ones are better, a link to the glossary will do.
PRIVATE = (
    *("beats?", "collectors?", "doors?", "held against", "promise[sd]?", "seats?"),
    *("siblings?", "suspects?"),
)
# A link to the glossary, or a line of a list that explains the word itself.
EXPLAINED = re.compile(r"\[[^\]]*\]\((?:\.\./)?glossary\.md[^)]*\)|^- \*\*[^*]+\*\*:", re.MULTILINE)
# `pip install torchferry`, with or without extras, quotes and options: no registry has it yet.
ADVICE = re.compile(r"pip3? install[^\n`]*?\btorchferry\b(?!-)(?!/)")
ADVISING = ("batching", "compat", "deploy", "docs", "examples", "ferry", "ingress", "workers")

# `unread_timeout` (30 s); | `unread_timeout` | 30 seconds |; | `queue_timeout` | `queueTimeout` |
# 120 seconds |; 30 s (`unread_timeout`)
NUMBER = r"(?P<number>\d(?:[\d,.]*\d)?)(?: (?P<unit>million|MiB|seconds|minutes|bytes|s|h)\b)?"
NUMBERS = (
    re.compile(rf"`(?P<name>[A-Za-z_]+)`(?:, | \(| \|(?: `\w+` \|)? ){NUMBER}(?=[),;|]| \|)"),
    re.compile(rf"{NUMBER} \(`(?P<name>[A-Za-z_]+)`\)"),
)
SCALES = {"million": 1e6, "MiB": 2**20, "h": 3600}


def each_of(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


def read(page):
    return page.read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCED.sub("", read(page)))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def is_there(page, link):
    place, _, anchor = link.partition("#")
    target = (page.parent / place).resolve() if place else page
    return target.exists() and (not anchor or anchor in anchors(target))


@each_of(PAGES)
def test_links_of_the_page_lead_somewhere(page):
    links = LINK.findall(CODE.sub("", FENCED.sub("", read(page))))
    inner = [link for link in links if "://" not in link and "mailto:" not in link]
    assert [link for link in inner if not is_there(page, link)] == []


def commands_in(text):
    """Yields the words behind `ferry`, of each command in blocks and code spans."""
    blocks = [code for kind, code in FENCED.findall(text) if kind in ("", "sh")]
    rest = FENCED.sub("", text)
    blocks += INDENTED.findall(rest)
    spans = [" ".join(span.split()) for span in INLINE.findall(INDENTED.sub("", rest))]
    for code in (*blocks, *spans):
        for words in COMMAND.findall(code.replace("\\\n", " ")):
            yield words.split()


def complaint(words):
    """Says what of a command there is not; empty if all is there."""
    command, context = main, click.Context(main)
    while isinstance(command, click.Group) and words and words[0] in command.list_commands(context):
        command, words = command.get_command(context, words[0]), words[1:]
    if isinstance(command, click.Group) and words and words[0][0].isalpha():
        return f"no command {words[0]}"
    known = {name for it in command.params for name in (*it.opts, *it.secondary_opts)}
    known |= {"--help", "--version"}
    asked = [re.sub(r"[=`'\",.:].*", "", word) for word in words if word.startswith("--")]
    return "".join(f"no option {name} " for name in asked if name not in known)


@each_of(COMMANDS)
def test_commands_of_the_page_are_there_with_their_options(page):
    found = [(" ".join(words), complaint(words)) for words in commands_in(read(page))]
    assert [pair for pair in found if pair[1]] == []


def test_commands_are_looked_up():
    text = "`ferry up --port-base 1`\n\n    x=$(ferry jobs send m f) && ferry node --no-such 1\n"
    assert [complaint(words) for words in commands_in(text)] == [
        "no command send",
        "no option --no-such ",
        "",
    ]


def test_numbers_beside_the_name_of_a_setting_are_its_default():
    # Given the default of each setting and parameter of models, by its names
    named = {name: it.default for it in PARAMETERS for name in (it.word, it.rest)}
    named |= {it.key: it.default for it in SETTINGS}
    known = {name: value for name, value in named.items() if type(value) in (int, float)}
    # When
    found = {
        (page.name, match["name"], number)
        for page in (ROOT / "README.md", *USERS)
        for form in NUMBERS
        for match in form.finditer(read(page))
        if match["name"] in known
        for number in [float(match["number"].replace(",", "")) * SCALES.get(match["unit"], 1)]
    }
    # Then
    assert len(found) > 20
    assert {(page, name, it) for page, name, it in found if it != known[name]} == set()


def test_figures_of_the_pages_are_those_of_the_records():
    text = read(summary.README)
    for name, expected in summary.written().items():
        assert with_block(text, name, expected) == text, f"{name}: make charts"
    measured = json.loads(read(RESULTS))
    assert with_table(read(DOCUMENT), measured) == read(DOCUMENT)
    assert all(promise["kept"] for promise in measured["promises"])


@pytest.mark.parametrize(
    ("chart", "labels"),
    [
        ("performance", lambda: [f"{ratio:.2f} x" for ratio in summary.ratios().values()]),
        ("batching", lambda: [f"{rate:,.0f}" for rate in summary.batching().values()]),
    ],
)
def test_charts_are_drawn_from_the_records(chart, labels):
    text = read(DOCS / "images" / f"{chart}.svg")
    assert [label for label in labels() if f">{label}</text>" not in text] == [], "make charts"


def test_pictures_are_small_and_shown():
    shown = "".join(map(read, PAGES))
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size <= MAX_BYTES, picture.name
        assert f"images/{picture.name}" in shown, picture.name


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("README.md", 1_200),
        ("docs/*.md", 40_200),
        ("docs/recipes/*.md", 1_800),
        ("docs/index.md", 250),
        ("docs/glossary.md", 500),
    ],
)
def test_pages_written_by_hand_are_short(pattern, most):
    words = [len(read(page).split()) for page in ROOT.glob(pattern)]
    assert 0 < sum(words) <= most


@each_of(USERS)
def test_page_is_plain_to_its_users(page):
    # Given what a reader sees of it
    text = COMMENT.sub("", FENCED.sub("", read(page)))
    prose = CODE.sub("", text)
    # Then columns have names
    rows = [row.strip("|").split("|") for row in HEADER.findall(text)]
    assert [row for row in rows if not all(name.strip() for name in row)] == []
    # And no word is of the tests, and one that is ours alone is explained where it first stands
    assert TEST_CODE.findall(prose) == []
    explained = [match.span() for match in EXPLAINED.finditer(prose)]
    firsts = (re.search(rf"\b{word}\b", prose, re.IGNORECASE) for word in PRIVATE)
    assert [
        first[0]
        for first in firsts
        if first and not any(start <= first.start() < end for start, end in explained)
    ] == []


def test_texts_advise_to_install_only_what_can_be_installed():
    files = [path for name in ADVISING for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [ROOT / "README.md", *ROOT.glob("docker-compose*.yml")]
    texts = {str(path): path.read_bytes().decode(errors="ignore") for path in files}
    assert len(texts) > 300
    assert {path: found for path, text in texts.items() if (found := ADVICE.findall(text))} == {}


def test_nothing_waits_to_be_measured():
    assert [page for page in PAGES if "Not measured yet" in read(page)] == []
