"""Numbers of the pages are those of the code, so that no two pages say different ones."""

import json
import re
from pathlib import Path

import pytest
from ts.metrics import BUCKETS, MAX_LABEL_CHARS
from ts.torch_handler.images import LARGE_PIXELS, MOST_SCANS

from batching.models.spec import PARAMETERS
from batching.settings.settings import SETTINGS, Settings
from batching.store.ingress_queue import USUAL_PATIENCE
from batching.store.jobs.job_records import MOST_TEXT_CHARS
from batching.store.jobs.job_store import FARTHEST
from batching.store.registry.catalog import RESTORED_WITHIN_S
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, MAX_FIELDS
from ingress.http1.connection import HALF_CLOSED_S, MAX_WAITING
from ingress.http1.heads import MAX_AROUND_BYTES
from ingress.jobs.job_service import KEEP_RANGE_S, LONGEST_S, MOST_WAIT_S
from ingress.predictions.prediction_service import MAX_LINES
from workers.archives.archive_entries import MAX_ENTRIES, MAX_UNPACKED_BYTES
from workers.handling.spare_memory import MOST_PAUSE_S
from workers.handling.worker import END_S, REPLY_PATIENCE_S, UNSURE_S
from workers.node.webhook_sender import MOST_RESULT_BYTES, TRY_S, WAITS_S
from workers.slots.deadline import WAIT_S

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "handlers"
PAGES = {path.name: path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}

# `unread_timeout` (30 s); | `unread_timeout` | 30 seconds |; | `queue_timeout` | `queueTimeout` |
# 120 seconds |; 30 s (`unread_timeout`)
NUMBER = r"(?P<number>\d(?:[\d,.]*\d)?)(?: (?P<unit>million|MiB|seconds|minutes|bytes|s|h)\b)?"
FORMS = (
    re.compile(rf"`(?P<name>[A-Za-z_]+)`(?:, | \(| \|(?: `\w+` \|)? ){NUMBER}(?=[),;|]| \|)"),
    re.compile(rf"{NUMBER} \(`(?P<name>[A-Za-z_]+)`\)"),
)
SCALES = {"million": 1e6, "MiB": 2**20, "h": 3600}


def defaults():
    """Returns the default number of each setting and parameter of models, by its names."""
    named = {name: it.default for it in PARAMETERS for name in (it.word, it.rest)}
    named |= {it.key: it.default for it in SETTINGS}
    return {name: value for name, value in named.items() if type(value) in (int, float)}


def named_numbers(text):
    """Each name of a setting with the number that the text has beside it."""
    known = defaults()
    return [
        (match["name"], float(match["number"].replace(",", "")) * SCALES.get(match["unit"], 1))
        for form in FORMS
        for match in form.finditer(text)
        if match["name"] in known
    ]


def test_numbers_beside_the_name_of_a_setting_are_its_default():
    # Given
    known = defaults()
    numbers = {
        (page, name, number)
        for page, path in PAGES.items()
        for name, number in named_numbers(path.read_text(encoding="utf-8"))
    }

    # Then
    assert len(numbers) > 20
    assert {(page, name, it) for page, name, it in numbers if it != known[name]} == set()


def test_a_wrong_number_would_be_found():
    text = "`unread_timeout` (10 s) or | `idle_timeout` | 60 seconds | and 2 h (`job_timeout`)"
    assert named_numbers(text) == [
        ("unread_timeout", 10),
        ("idle_timeout", 60),
        ("job_timeout", 7200),
    ]


def corpus():
    """Counts the handlers in tests/handlers, and the recorded answers."""
    answers = json.loads((CORPUS / "recorded.json").read_text(encoding="utf-8"))["answers"]
    return len([*CORPUS.glob("corpus/*.py")]), sum(map(len, answers.values()))


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("handlers.md", f"compares {corpus()[0]} handlers in the styles"),
        ("handlers.md", f"to {corpus()[1]} requests"),
        ("handlers.md", f"is ended after {WAIT_S:.0f} s"),
        ("handlers.md", f"threads at most {END_S:.0f} seconds later"),
        ("handlers.md", f"more than {CHUNK_LIMIT_BYTES // 1024} KiB arrives in several chunks"),
        ("handlers.md", f"cut after {MOST_TEXT_CHARS} characters"),
        ("handlers.md", f"more than {MOST_SCANS} scans"),
        ("handlers.md", f"more than {LARGE_PIXELS // 10**6} million pixels is scaled"),
        ("handlers.md", f"room for {MAX_FIELDS:,} numbers"),
        ("handlers.md", f"a histogram takes {len(BUCKETS) + 2} for"),
        ("handlers.md", f"cut at {MAX_LABEL_CHARS} characters"),
        ("acceleration.md", f"up to {LARGE_PIXELS // 10**6} million pixels"),
        ("jobs.md", f"({MOST_WAIT_S:.0f} s at most)"),
        ("jobs.md", f"At most {LONGEST_S // 86_400} days"),
        ("jobs.md", "{} to {:,} s".format(*KEEP_RANGE_S)),
        ("jobs.md", f"before it, up to {FARTHEST:,} |"),
        ("jobs.md", f"if that has {MOST_RESULT_BYTES // 1024} KiB at most"),
        ("jobs.md", f"Any 2xx within {TRY_S:.0f} s"),
        ("jobs.md", f"{len(WAITS_S) + 1} tries in about {sum(WAITS_S) / 86_400:.0f} days"),
        ("configuration.md", f"if it comes in some, may have {MAX_AROUND_BYTES // 2**20} MiB"),
        ("operations.md", f"or {MOST_PAUSE_S:.0f} s if it ran right after another one"),
        ("operations.md", f"occupies its worker for {REPLY_PATIENCE_S:.0f} s"),
        ("operations.md", f"at most {MAX_LINES} a second of predictions"),
        ("operations.md", f"if {USUAL_PATIENCE.resubmit_share:.0%} of its deadline is left"),
        ("reliability.md", f"less than {USUAL_PATIENCE.resubmit_share:.0%} of the deadline"),
        ("reliability.md", f"no node is back within {RESTORED_WITHIN_S} s"),
        ("reliability.md", f"499 after {HALF_CLOSED_S} s"),
        ("reliability.md", f"gives back what it should not have within {UNSURE_S:.0f} s"),
        ("security.md", f"wait for {LONGEST_S // 86_400} days"),
        ("security.md", f"be kept for {KEEP_RANGE_S[1] // 86_400} more"),
        ("security.md", f"{MAX_WAITING} requests at a time on one connection"),
        ("security.md", f"outside its body is limited to {MAX_AROUND_BYTES // 2**20} MiB"),
        ("torchserve-compatibility.md", f"at most {MAX_ENTRIES:,} files"),
        ("torchserve-compatibility.md", f"{MAX_UNPACKED_BYTES // 1024**3} GiB unpacked"),
        (
            "moving-from-torchserve.md",
            f"504 after {Settings().queue_timeout_s + Settings().default_response_timeout_s:.0f} s",
        ),
    ],
)
def test_sentence_has_the_number_of_the_code(page, sentence):
    text = " ".join(PAGES[page].read_text(encoding="utf-8").split())
    assert sentence in text
