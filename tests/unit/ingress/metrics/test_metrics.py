"""What an ingress measures, as /metrics has it."""

import pytest

from batching.models.spec import VersionKey
from batching.protocol import BatchTiming
from ingress.metrics.ingress_metrics import LAST_VALUES, LEGACY, Metrics
from ingress.rest.metrics_api import write_text
from ingress.role import Role

KEY = VersionKey("m", "1.0")


def lines(metrics, *names):
    return write_text(metrics.collect(), names).decode().splitlines()


def sample(metrics, start):
    [line] = [line for line in lines(metrics) if line.startswith(start)]
    return float(line.rpartition(" ")[2])


def test_b19_text_is_written_whatever_a_label_holds():
    # Given half of a character, which has no UTF-8
    metrics = Metrics()
    metrics.version(VersionKey("a\ud800", "1"), None).count_answer(200, 0.01, None)
    # When / Then
    assert any('model="a?",' in line for line in lines(metrics))


def test_torchserve_counters_keep_their_names_and_version_label():
    # Given
    metrics = Metrics()
    by_default, by_version = metrics.version(KEY, None), metrics.version(KEY, "1.0")
    timing = BatchTiming(batch_size=4, queue_us=500, handler_us=900, is_first=False)
    # When
    for measured in (by_default, by_version):
        measured.count_arrival()
    by_default.count_answer(200, 0.002, timing)
    by_version.count_answer(503, 0.002, timing)
    # Then
    where = '{model_name="m",model_version="default"'
    assert sample(metrics, f"ts_inference_requests_total{where}") == 1
    assert sample(metrics, f"ts_inference_latency_microseconds{where}") == 2000
    assert sample(metrics, f"ts_queue_latency_microseconds{where}") == 500
    where = '{model_name="m",model_version="1.0"'
    assert sample(metrics, f"ts_inference_requests_total{where}") == 1
    assert sample(metrics, f"ts_inference_latency_microseconds{where}") == 0


@pytest.mark.parametrize("logged", [LAST_VALUES, (*LAST_VALUES, *LEGACY)])
def test_metrics_are_lines_of_torchserves_form_when_they_are_logged(caplog, logged):
    # Given
    measured = Metrics(logged).version(KEY, None)
    # When
    with caplog.at_level("INFO", "TS_METRICS"):
        measured.count_arrival()
        measured.count_answer(200, 0.01, BatchTiming(1, 2000, 3000, is_first=True))
    # Then
    lines = [record.getMessage() for record in caplog.records]
    assert {line.partition(".")[0] for line in lines} == set(logged)
    [queue] = [line for line in lines if line.startswith("QueueTime")]
    assert queue.startswith("QueueTime.Milliseconds:2.0|#Level:Host|#hostname:")


def test_batch_is_counted_once_however_many_requests_it_holds():
    # Given
    metrics = Metrics()
    measured = metrics.version(KEY, None)
    # When
    for position in range(4):
        measured.count_answer(200, 0.01, BatchTiming(4, 100, 9000, is_first=position == 0))
    # Then
    assert sample(metrics, "ferry_batch_size_count") == 1
    assert sample(metrics, "ferry_handler_seconds_sum") == 0.009
    assert sample(metrics, "ferry_request_seconds_count") == 4
    assert sample(metrics, "ferry_queue_wait_seconds_count") == 4


def test_batch_that_was_run_one_by_one_without_a_fault_is_counted_once():
    # Given
    metrics = Metrics()
    measured = metrics.version(KEY, None)
    # When
    for is_first in (True, False):
        timing = BatchTiming(2, 100, 9000, is_first=is_first, is_unbatched=True)
        measured.count_answer(200, 0.01, timing)
    measured.count_answer(200, 0.01, BatchTiming(1, 100, 900, is_first=True))
    # Then
    assert sample(metrics, "ferry_unbatched_batches_total") == 1


def test_version_that_is_not_registered_any_more_has_no_series_and_begins_anew():
    # Given two versions that were asked in each way, and answered well and badly
    metrics = Metrics()
    kept = VersionKey("m", "2.0")
    for key, asked in ((KEY, None), (KEY, "1.0"), (kept, None), (kept, "2.0")):
        measured = metrics.version(key, asked)
        measured.count_arrival()
        measured.count_answer(200, 0.01, BatchTiming(1, 100, 900, is_first=True))
        measured.count_answer(503, 0.01, None, reason="no_worker")
    metrics.count_unknown(404, "model_not_found")
    left = [line for line in lines(metrics) if 'version="1.0"' not in line]
    # When
    metrics.keep_only({kept})
    # Then
    assert lines(metrics) == left
    assert 'ts_inference_requests_total{model_name="m",model_version="default"' in str(left)
    # And the last version of a model takes along what its name alone was asked for
    metrics.keep_only(set())
    assert not [line for line in lines(metrics) if '="m"' in line]
    # And what is registered again is counted again
    metrics.version(KEY, None).count_answer(200, 0.01, None)
    assert sample(metrics, 'ferry_requests_total{model="m",version="1.0",code="200"') == 1
    assert sample(metrics, "ferry_request_seconds_count") == 1


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("is_emptied", [False, True])
def test_unregistered_version_is_shown_once_more(ingress, is_emptied):
    # Given
    key = ingress.register("echo", min_worker=0).key
    ingress.services.metrics.version(key, None).count_answer(200, 0.01, None)
    ingress.registry.remove(key)
    if is_emptied:  # until its nodes bring it back
        ingress.services.client.flushall()
    client = ingress.apps[Role.METRICS].test_client()
    # When
    shown = ['model="echo"' in client.get("/metrics").text for _ in range(3)]
    # Then
    assert shown[0]
    assert shown[-1] is is_emptied
