"""What pages say of commands, settings and defaults is what the code has."""

import inspect
import re
from pathlib import Path

import click
import pytest

import ferry_client
from batching.models.registration import SERVING_DEFAULTS
from ferry.main import main
from ferry.serving.served_targets import DEFAULTS
from ferry_bulk.main import _parser
from ferry_bulk.model_server import UNKNOWN_S
from ferry_client import flows
from ferry_moving import proxy, report

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    {
        ROOT / "README.md",
        *DOCS.glob("*.md"),
        *DOCS.glob("recipes/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("packages/*/README.md"),
    }
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {4}.*\n)+", re.MULTILINE)
BULK = _parser().parse_args(["--folder", "x"])
PATIENCE_S = inspect.signature(ferry_client.Client).parameters["patience_s"].default
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
# At the start of a line, of a command within one, or of a code span.
COMMAND = re.compile(
    r"(?:^|\$\(|&& |; |\| |\bdo |\bexec )\s*ferry ([a-z][^|;&)#\n]*)", re.MULTILINE
)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_page_are_there_with_their_options(page):
    # When
    found = [(" ".join(it), complaint(it)) for it in commands_in(page.read_text(encoding="utf-8"))]
    # Then
    assert [pair for pair in found if pair[1]] == []


def test_commands_are_looked_up():
    text = "`ferry up --port-base 1`\n\n    x=$(ferry jobs send m f) && ferry node --no-such 1\n"
    assert [complaint(words) for words in commands_in(text)] == [
        "no command send",
        "no option --no-such ",
        "",
    ]


def test_models_in_python_have_the_defaults_of_their_page():
    # Given
    text = (DOCS / "python-models.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| defaults \| (.*) \|$", text, re.MULTILINE)
    # Then
    said = dict(re.findall(r"`(\w+)=(\w+)`", row))
    size, delay_ms, policy = (
        DEFAULTS[key] for key in ("batchSize", "maxBatchDelay", "batchPolicy")
    )
    assert said == {
        "batch_size": str(size),
        "max_batch_delay": str(delay_ms),
        "batch_policy": policy,
    }
    assert row.endswith("one worker")
    assert DEFAULTS["minWorkers"] == 1


def test_clients_page_has_its_errors_and_the_name_of_its_log():
    # Given
    text = (DOCS / "client.md").read_text(encoding="utf-8")
    tree = re.findall(r"^    [ │├└─]*([A-Z]\w+)(?:  |$)", text, re.MULTILINE)
    # Then
    exported = (getattr(ferry_client, name) for name in ferry_client.__all__)
    assert set(tree) == {
        it.__name__ for it in exported if isinstance(it, type) and issubclass(it, Exception)
    }
    assert f"(`{flows.log.name}`)" in text


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("handlers.md", f"with `batch_size` {SERVING_DEFAULTS['batch_size']}"),
        ("bulk.md", f"unknown model wait for {UNKNOWN_S:.0f} s"),
        ("bulk.md", f"{BULK.in_flight} lines of a batch at the server at once"),
        ("bulk.md", f"uploads of up to {BULK.max_file_size // 10**9} GB"),
        ("client.md", f"({PATIENCE_S:.0f} s by default)"),
        ("comparing-servers.md", f"of {proxy.MOST_BYTES // 2**20} MiB together"),
        ("comparing-servers.md", f"the last {report._KEPT_LATENCIES:,} of each row"),
        ("comparing-servers.md", f"clients, and then copies, {proxy._DRAIN_S:.0f} s to finish"),
    ],
)
def test_sentence_of_a_page_has_the_number_of_the_code(page, sentence):
    assert sentence in " ".join((DOCS / page).read_text(encoding="utf-8").split())
