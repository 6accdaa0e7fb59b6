import json

import pytest

from benchmarks.echo_report import Comparison, median_run, to_record
from benchmarks.load import BenchmarkError, LoadReport


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


def runs(*requests_per_s, errors=0):
    return [LoadReport(rate, 5.0, 10.0, errors) for rate in requests_per_s]


def test_report_reads_rate_and_latency():
    # When
    report = LoadReport.from_wrk(wrk_output(), body_bytes=1024)

    # Then
    assert report == LoadReport(requests_per_s=2000.0, p50_ms=5.5, p99_ms=11.0, errors=0)


def test_report_adds_up_every_kind_of_error():
    # Given
    output = wrk_output(
        connect_errors=1, read_errors=2, write_errors=4, status_errors=8, timeouts=16
    )

    # When
    report = LoadReport.from_wrk(output, body_bytes=1024)

    # Then
    assert report.errors == 31


def test_report_counts_all_as_errors_when_answers_lack_the_body():
    # Given
    output = wrk_output(bytes_read=4000 * 200)

    # When
    report = LoadReport.from_wrk(output, body_bytes=1024)

    # Then
    assert report.errors == 4000


@pytest.mark.parametrize("output", ["unable to connect", wrk_output(requests=0)])
def test_report_is_refused_when_nothing_was_measured(output):
    # When / Then
    with pytest.raises(BenchmarkError):
        LoadReport.from_wrk(output, body_bytes=1024)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_reached"),
    [
        (runs(9000, 9100, 100), runs(12_000, 12_000, 12_000), True),
        (runs(7000, 7000, 7000), runs(6000, 7000, 9000), True),
        (runs(7000, 7000, 7000), runs(7001, 7001, 7001), False),
        (runs(9000, 9000, 9000, errors=1), runs(10, 10, 10), False),
    ],
    ids=["bar", "as fast as TorchServe", "below both", "errors"],
)
def test_verdict_weighs_medians_against_bar_and_torchserve(ours, theirs, is_reached):
    # Given
    comparison = Comparison({"TorchServe": theirs, "torchferry": ours}, bar_per_s=8000)

    # When
    verdict = comparison.verdict()

    # Then
    assert verdict.is_reached is is_reached


def test_verdict_is_left_out_when_torchferry_was_not_measured():
    # When
    comparison = Comparison({"TorchServe": runs(9000)}, bar_per_s=8000)

    # Then
    assert comparison.verdict() is None
    assert comparison.ratios() == []


def test_record_has_ratio_of_each_pair_and_their_median():
    # Given
    comparison = Comparison(
        {"TorchServe": runs(5000, 8000, 10_000), "torchferry": runs(10_000, 8000, 15_000)},
        bar_per_s=8000,
    )

    # When
    record = json.loads(json.dumps(to_record(comparison, {}, {})))

    # Then
    assert record["ratios"] == [2.0, 1.0, 1.5]
    assert record["median_ratio"] == 1.5
    assert record["verdict"]["is_reached"] is True
    assert record["machine"]["cores"] >= 1


def test_median_run_adds_errors_up():
    # When
    median = median_run(runs(1, 2, 9, errors=2))

    # Then
    assert (median.requests_per_s, median.errors) == (2, 6)
