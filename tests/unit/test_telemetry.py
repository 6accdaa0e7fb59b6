import io
import logging

import pytest

from batching.model_spec import VersionKey
from batching.protocol import BatchTiming
from batching.telemetry import Metrics, configure_logging
from batching.torchserve_metrics import LEGACY
from ingress.metrics_text import write_text

KEY = VersionKey("m", "1.0")


def lines(metrics, *names):
    return write_text(metrics.registry.collect(), names).decode().splitlines()


def sample(metrics, start):
    [line] = [line for line in lines(metrics) if line.startswith(start)]
    return float(line.rpartition(" ")[2])


def test_text_has_torchserves_trailing_comma_and_floats():
    # Given
    metrics = Metrics()
    metrics.version(KEY, None).count_answer(200, 0.01, None)
    # When / Then
    assert 'ferry_requests_total{model="m",version="1.0",code="200",} 1.0' in lines(metrics)


def test_text_keeps_only_the_asked_families():
    metrics = Metrics()
    names = [line.split()[2] for line in lines(metrics, "ferry_open_requests") if "HELP" in line]
    assert names == ["ferry_open_requests"]


def test_text_escapes_labels():
    metrics = Metrics()
    metrics.requests.labels('a"\\\n', "1", "200").inc()
    assert any(r'model="a\"\\\n",' in line for line in lines(metrics))


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


@pytest.mark.parametrize(("unlogged", "has_legacy"), [((), True), (LEGACY, False)])
def test_metrics_are_lines_of_torchserves_form_when_they_are_logged(caplog, unlogged, has_legacy):
    # Given
    measured = Metrics(is_logging=True, unlogged=unlogged).version(KEY, None)
    # When
    with caplog.at_level("INFO", "TS_METRICS"):
        measured.count_arrival()
        measured.count_answer(200, 0.01, BatchTiming(1, 2000, 3000, is_first=True))
    # Then
    lines = [record.getMessage() for record in caplog.records]
    found = {line.partition(".")[0] for line in lines}
    assert found - set(LEGACY) == {"QueueTime", "WorkerThreadTime"}
    assert set(LEGACY) <= found if has_legacy else not set(LEGACY) & found
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


@pytest.fixture
def log_lines():
    """Writes to a log that is configured with these fields; what was written."""
    root = logging.getLogger()
    handlers, level, stream = root.handlers, root.level, io.StringIO()
    root.handlers = []

    def write(fields, name, message, **options):
        configure_logging("info", stream, fields)
        logging.getLogger(name).error(message, **options)
        return [line.partition(f" {name} ")[2] or line for line in stream.getvalue().splitlines()]

    yield write
    root.handlers = handlers
    root.setLevel(level)


FIELDS = {"model": "m", "version": "1.0", "worker": "w-1"}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("claim failed", "claim failed model=m version=1.0 worker=w-1"),
        ("handler failed model=m batch=2", "handler failed model=m batch=2 version=1.0 worker=w-1"),
    ],
)
def test_line_says_whose_it_is_once(log_lines, message, line):
    assert log_lines(FIELDS, "workers.worker", message) == [line]


def test_line_says_whose_it_is_above_what_else_belongs_to_it(log_lines):
    # Given
    error = KeyError("x")
    # When
    first, *rest = log_lines(FIELDS, "handler", "one\ntwo", exc_info=error)
    # Then
    assert first == "one model=m version=1.0 worker=w-1"
    assert rest == ["two", "KeyError: 'x'"]


def test_metrics_lines_keep_torchserves_form(log_lines):
    line = "HandlerTime.Milliseconds:1.0|#ModelName:m,Level:Model|#type:GAUGE"
    assert log_lines(FIELDS, "MODEL_METRICS", line) == [line]


def test_process_without_fields_adds_nothing(log_lines):
    assert log_lines(None, "ingress", "stopped") == ["stopped"]
