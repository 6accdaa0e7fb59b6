"""Numbers of the pages are those of the code, so that no two pages say different ones."""

import inspect
import json
import re
from pathlib import Path

import pytest
from ts.metrics import BUCKETS, MAX_LABEL_CHARS
from ts.torch_handler.images import LARGE_PIXELS, MOST_SCANS

import ferry_client
from batching.models.registration import SERVING_DEFAULTS
from batching.settings.settings import Settings
from batching.store.ingress_queue import USUAL_PATIENCE
from batching.store.jobs.job_records import MOST_TEXT_CHARS
from batching.store.jobs.job_store import FARTHEST
from batching.store.registry.catalog import RESTORED_WITHIN_S
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, MAX_FIELDS
from ferry.serving.served_targets import DEFAULTS
from ferry_bulk.main import _parser
from ferry_bulk.model_server import UNKNOWN_S
from ferry_client import flows
from ferry_moving import proxy, report
from ingress.http1.connection import HALF_CLOSED_S, MAX_WAITING
from ingress.http1.heads import MAX_AROUND_BYTES
from ingress.jobs.job_service import KEEP_RANGE_S, LONGEST_S, MOST_WAIT_S
from ingress.predictions.prediction_service import MAX_LINES
from workers.archives.model_archive import MAX_ENTRIES, MAX_UNPACKED_BYTES
from workers.handling.worker import END_S, MEMORY_PAUSE_S, REPLY_PATIENCE_S, UNSURE_S
from workers.node.webhook_sender import MOST_RESULT_BYTES, TRY_S, WAITS_S
from workers.slots.assignment import WAIT_S

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CORPUS = ROOT / "tests" / "handlers"
BULK = _parser().parse_args(["--folder", "x"])
PATIENCE_S = inspect.signature(ferry_client.Client).parameters["patience_s"].default


def corpus():
    """How many handlers there are in tests/handlers, and how many recorded answers."""
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
        ("operations.md", f"or {MEMORY_PAUSE_S:.0f} s if it ran right after another one"),
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
def test_sentence_has_the_number_of_the_code(page, sentence):
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert sentence in text


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
