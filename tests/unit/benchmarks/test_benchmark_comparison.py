"""What `benchmarks.compare` makes of what it measured."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.comparison import OURS, is_reached, median_run, to_record
from benchmarks.contest import Pairs
from benchmarks.load import BenchmarkError, LoadReport
from benchmarks.presentation import markdown, print_record, rows, write_chart
from benchmarks.records import PERFORMANCE, RESULTS, told, with_block, write_record
from benchmarks.workloads import WORKLOADS, Bar

ABOUT = {"pairs": 3, "seconds": 5.0, "load_average": 0.1, "versions": {}}
SCORES = {"7": 0.5, "3": 0.2, "1": 0.1, "2": 0.05, "0": 0.01}


def wrk_output(**changes):
    record = {
        "requests": 4000,
        "duration_us": 2_000_000,
        "bytes_read": 4000 * 1200,
        "p50_us": 5500,
        "p99_us": 11_000,
        "connect_errors": 0,
        "read_errors": 0,
        "write_errors": 0,
        "status_errors": 0,
        "timeouts": 0,
    }
    return f"Running 2s test\nREPORT {json.dumps(record | changes)}\n"


def runs(*requests_per_s, p99_ms=10.0, errors=0):
    return [LoadReport(rate, 5.0, p99_ms, errors) for rate in requests_per_s]


def beside(ours, theirs, rival="TorchServe", answers=()):
    return Pairs(rival, "1.0", ours, theirs, list(answers))


def record_of(*measured, left_out=None, bars=None):
    workload = WORKLOADS["echo"]
    if bars is not None:
        workload = replace(workload, bars=bars)
    return json.loads(json.dumps(to_record(workload, measured, left_out or {}, ABOUT)))


def verdicts(record):
    return [verdict["is_reached"] for verdict in record["verdicts"]]


def test_report_reads_rate_and_latency():
    # When
    report = LoadReport.from_wrk(wrk_output(), least_answer_bytes=1024)

    # Then
    assert report == LoadReport(requests_per_s=2000.0, p50_ms=5.5, p99_ms=11.0, errors=0)


def test_report_adds_up_every_kind_of_error():
    # Given
    output = wrk_output(
        connect_errors=1, read_errors=2, write_errors=4, status_errors=8, timeouts=16
    )

    # When
    report = LoadReport.from_wrk(output, least_answer_bytes=1024)

    # Then
    assert report.errors == 31


def test_report_counts_all_as_errors_when_answers_lack_the_body():
    # When
    report = LoadReport.from_wrk(wrk_output(bytes_read=4000 * 200), least_answer_bytes=1024)

    # Then
    assert report.errors == 4000


@pytest.mark.parametrize("output", ["unable to connect", wrk_output(requests=0)])
def test_report_is_refused_when_nothing_was_measured(output):
    # When / Then
    with pytest.raises(BenchmarkError):
        LoadReport.from_wrk(output, least_answer_bytes=1024)


def test_median_run_adds_errors_up():
    # When
    median = median_run(runs(1, 2, 9, errors=2))

    # Then
    assert (median.requests_per_s, median.errors) == (2, 6)


def test_record_has_the_ratio_of_medians_and_of_each_pair():
    # When
    record = record_of(beside(runs(10_000, 8000, 30_000), runs(5000, 8000, 10_000)))

    # Then
    found = record["beside"]["TorchServe"]
    assert found["ratio"] == 1.25
    assert found["ratios_of_pairs"] == [2.0, 1.0, 3.0]
    assert found["runs"][OURS][1]["requests_per_s"] == 8000
    assert record["machine"]["cpus"] >= 1


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (runs(2500, p99_ms=10), [True, True, True]),
        (runs(2499, p99_ms=10), [False, True, True]),
        (runs(2500, p99_ms=10.1), [True, False, True]),
        (runs(2500, p99_ms=10, errors=1), [True, True, False]),
    ],
    ids=["reached", "slower", "later", "errors"],
)
def test_bar_is_reached_by_rate_and_p99_without_errors(ours, expected):
    # When
    record = record_of(beside(ours, runs(1000, p99_ms=20)))

    # Then
    assert verdicts(record) == expected
    assert is_reached(record) is all(expected)


def test_bar_cannot_be_judged_when_its_server_was_left_out():
    # When
    record = record_of(
        beside(runs(1000), runs(9000), rival="mosec"), left_out={"TorchServe": "no Java"}
    )

    # Then
    assert verdicts(record) == [None, True]
    assert is_reached(record) is None


def test_bar_is_passed_over_when_its_server_was_not_asked_for():
    # When
    record = record_of(beside(runs(1000), runs(9000), rival="mosec"))

    # Then
    assert is_reached(record) is True


@pytest.mark.parametrize(
    ("theirs", "kind", "is_same"),
    [
        (SCORES, "scores", True),
        (SCORES | {"7": 0.5009}, "scores", True),
        (SCORES | {"7": 0.502}, "scores", False),
        ({**SCORES, "9": 0.01} | {"0": 0.0}, "scores", False),
        (dict(reversed(SCORES.items())), "best", False),
        (SCORES | {"7": 0.7}, "best", True),
    ],
    ids=["equal", "close", "too far", "another class", "another best", "same best"],
)
def test_bar_holds_answers_against_each_other(theirs, kind, is_same):
    # Given
    same = (SCORES, SCORES)

    # When
    record = record_of(
        beside(runs(10), runs(1), answers=[same, (SCORES, theirs)]),
        bars=(Bar("TorchServe", 1.0, answers=kind),),
    )

    # Then
    assert verdicts(record) == [True, is_same, True]


def test_markdown_says_where_we_are_slower():
    # Given
    record = record_of(
        beside(runs(1000), runs(2000), rival="mosec"),
        left_out={"LitServe": "pip failed:\nno such package\n..."},
    )

    # When
    text = markdown(record, "echo", "charts/echo.png")

    # Then
    assert "**slower than mosec**, which does 2.00 x as much" in text
    assert "- left out: LitServe: pip failed: no such package\n" in text
    assert "| mosec 1.0 | 2,000 | 1,000 | 0.50 | 0.50 to 0.50 |" in text
    assert told(record) in text


def test_table_is_printed_with_verdicts(capsys):
    # Given
    record = record_of(beside(runs(3000, p99_ms=1), runs(1000)))

    # When
    print_record(Console(width=120), record)

    # Then
    printed = capsys.readouterr().out
    assert "reached: 3.00 x TorchServe's requests/s (at least 2.5)" in printed
    assert next(rows(record))[1] in printed


def test_chart_is_a_picture(tmp_path):
    # Given
    pytest.importorskip("matplotlib")
    record = record_of(beside(runs(3000, 2000), runs(1000, 900)))

    # When
    write_chart(record, tmp_path / "charts" / "echo.png")

    # Then
    assert (tmp_path / "charts" / "echo.png").read_bytes().startswith(b"\x89PNG")


def test_block_replaces_only_what_is_between_its_marks():
    # Given
    text = "# A\n\n<!-- begin x -->\nold\n\n<!-- end x -->\nrest <!-- begin y -->\n"

    # When
    once = with_block(text, "x", "new\n\n")

    # Then
    assert once == "# A\n\n<!-- begin x -->\nnew\n\n<!-- end x -->\nrest <!-- begin y -->\n"
    assert with_block(once, "x", "new") == once


def test_block_is_refused_when_the_document_has_no_place_for_it():
    # When / Then
    with pytest.raises(ValueError, match="begin z"):
        with_block("<!-- end z -->\n", "z", "new")


@pytest.mark.parametrize("name", WORKLOADS)
def test_performance_document_has_the_figures_that_were_measured(name):
    # Given
    text = PERFORMANCE.read_text(encoding="utf-8")
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    # Then
    if "beside" in record:
        assert with_block(text, name, markdown(record, name, f"charts/{name}.png")) == text
    else:
        with_block(text, name, "there is a place for it")


def test_record_survives_the_disk(tmp_path):
    # Given
    record = record_of(beside(runs(3000), runs(1000)))

    # When
    write_record(record, tmp_path / "results" / "echo.json")

    # Then
    assert json.loads((tmp_path / "results" / "echo.json").read_text()) == record
