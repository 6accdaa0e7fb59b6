"""What pages say of commands, settings and defaults is what the code has."""

import re
from pathlib import Path

import click
import pytest

import ferry_client
from batching.models.registration import SERVING_DEFAULTS
from batching.settings.settings import BY_KEY
from ferry.main import main
from ferry.serving.served_targets import DEFAULTS
from ferry_client import flows

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
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
# At the start of a line, of a command within one, or of a code span.
COMMAND = re.compile(
    r"(?:^|\$\(|&& |; |\| |\bdo |\bexec )\s*ferry ([a-z][^|;&)#\n]*)", re.MULTILINE
)
# As in: `idle_timeout` (65 s), or `job_timeout`, 24 h.
DEFAULT = re.compile(r"`(\w+)`(?: \(|, )([\d.,]*\d)(?: (ms|s|min|h|million)\b)?(?=[\s).,;])")
UNITS = {"": 1, "ms": 0.001, "s": 1, "min": 60, "h": 3600, "million": 1_000_000}


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


def test_defaults_that_pages_name_beside_a_setting_are_its_own():
    # Given
    named = [
        (page.name, key, float(number.replace(",", "")) * UNITS[unit])
        for page in PAGES
        for key, number, unit in DEFAULT.findall(page.read_text(encoding="utf-8"))
        if key in BY_KEY
    ]
    # Then
    assert {"unread_timeout", "job_memory_share"} <= {key for _, key, _ in named}
    assert [it for it in named if it[2] != BY_KEY[it[1]].default] == []


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


def test_handlers_page_has_the_defaults_of_a_registration():
    text = (DOCS / "handlers.md").read_text(encoding="utf-8")
    [size] = re.findall(r"`ferry models register` starts one worker, .*?up to (\d+) requests", text)
    assert int(size) == SERVING_DEFAULTS["batch_size"]
    assert SERVING_DEFAULTS["min_worker"] == 1


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
