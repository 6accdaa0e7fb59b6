"""From `context.metrics` to what an ingress shows."""

import contextlib
import socket

import pytest
from ts.metrics import Dimension, MetricsStore, MetricTypes

from batching.metrics import (
    DEFAULT_METRICS,
    DeclaredMetric,
    MetricKind,
    Series,
    read_metrics_config,
)
from batching.settings.settings import SettingsError
from batching.store.redis_errors import RedisError
from ingress.rest.metrics_api import handler_families, write_text
from tests.support import make_spec
from workers.handling.metrics_reporter import MetricsReporter

HOST = socket.gethostname()


class QueueHarness:
    """Where measurements are recorded; may be closed for a while."""

    def __init__(self):
        self.values = {}
        self.is_closed = False

    def record(self, measurements):
        if self.is_closed:
            raise RedisError
        for measurement in measurements:
            # As an ingress reads it
            series = Series.from_field(measurement.series.to_field())
            known = 0 if series.kind is MetricKind.GAUGE else self.values.get(series, 0)
            self.values[series] = measurement.value + known
        return 0


class Models:
    """A registry with one version."""

    def specs(self):
        return [make_spec()]


@pytest.fixture
def harness():
    return QueueHarness()


@pytest.fixture
def make(harness):
    def make(declared=DEFAULT_METRICS, *, is_showing_all=True, is_logging=False):
        store = MetricsStore(None, "m")
        store.request_ids = {0: "a"}
        for metric in declared:  # as when a model is loaded
            kind = MetricTypes(metric.kind.value)
            store.add_metric_to_cache(metric.name, metric.unit, metric.dimensions, kind)
        reporter = MetricsReporter(
            store, declared, is_showing_all=is_showing_all, is_logging=is_logging
        )

        def report():
            with contextlib.suppress(RedisError), reporter.unsent() as measured:
                harness.record(measured)

        return store, report

    return make


def text_of(harness, declared=DEFAULT_METRICS):
    families = handler_families(Models(), lambda _key: harness.values, declared)
    return write_text(families).decode()


def test_histogram_is_shown_with_cumulative_buckets(make, harness):
    # Given
    store, report = make(())
    metric = store.add_metric_to_cache("Size", "B", ["Who"], MetricTypes.HISTOGRAM)
    # When
    for value in (0.2, 0.7, 99):
        metric.add_or_update(value, ["me"])
        report()
    # Then
    lines = text_of(harness, ()).splitlines()
    labels = f'Who="me",Hostname="{HOST}",'
    assert lines[1] == "# TYPE Size histogram"
    assert f'Size_bucket{{{labels}le="0.25",}} 1.0' in lines
    assert f'Size_bucket{{{labels}le="0.75",}} 2.0' in lines
    assert f'Size_bucket{{{labels}le="10.0",}} 2.0' in lines
    assert f'Size_bucket{{{labels}le="+Inf",}} 3.0' in lines
    assert f"Size_count{{{labels}}} 3.0" in lines
    assert f"Size_sum{{{labels}}} 99.9" in lines


HOSTILE_LABELS = {
    "half a character": ("a\ud800b", "a?b"),
    "bytes that were no text": (b"\xff".decode(errors="surrogateescape"), "?"),
    "long": ("x" * 1000, "x" * 256),
    "long and beyond ASCII": ("\U0001f600" * 257, "\U0001f600" * 256),
    "lines": ('1\n# TYPE x "', r"1\n# TYPE x \""),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE_LABELS.values(), ids=HOSTILE_LABELS)
def test_b19_label_from_a_client_is_short_and_valid_text(make, harness, text, shown):
    # Given
    store, report = make()
    # When
    store.add_counter("Calls", 2, None, [Dimension("Who", text)])
    report()
    # Then
    where = f'Who="{shown}",ModelName="m",Level="Model",Hostname="{HOST}",'
    assert f"Calls{{{where}}} 2.0" in text_of(harness).splitlines()


def test_b19_labels_that_are_the_same_when_cut_are_one_series(make, harness):
    store, report = make(())
    metric = store.add_metric_to_cache("Depth", "B", ["Who"], MetricTypes.GAUGE)
    for value, end in enumerate("aba"):
        metric.add_or_update(value, ["x" * 256 + end])
    report()
    # Then the last value is shown, whichever text it came with
    assert list(harness.values.values()) == [2]


def test_metric_that_is_not_declared_is_dropped_and_told_of_once(make, harness, caplog):
    # Given
    store, report = make(is_showing_all=False)
    # When
    for _ in range(2):
        store.add_counter("Calls", 1)
        store.add_time("PredictionTime", 1)
        report()
    # Then
    assert [series.name for series in harness.values] == ["PredictionTime"]
    assert [record.getMessage() for record in caplog.records] == [
        "metric Calls is not shown: not listed in metrics_config, and model_metrics_auto_detect "
        "is off"
    ]


def test_measurements_wait_while_redis_is_away(make, harness):
    # Given
    store, report = make()
    harness.is_closed = True
    for value in (1, 2):
        store.add_counter("Calls", value)
        store.add_time("HandlerTime", value)
        report()
    # When
    harness.is_closed = False
    report()
    report()
    # Then
    values = {series.name: value for series, value in harness.values.items()}
    assert values == {"Calls": 3, "HandlerTime": 2}


CONFIG = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [*level]}
model_metrics:
  counter:
    - {name: Calls, unit: Count, dimensions: [*model_name]}
    - {name: Bare, unit: Count, dimensions: }
  gauge:
    - {name: HandlerTime, unit: ms, dimensions: [*model_name, *level]}
"""


def test_metrics_config_is_read_in_torchserves_format(tmp_path):
    # Given
    path = tmp_path / "metrics.yaml"
    path.write_text(CONFIG)
    # When / Then
    assert read_metrics_config(path) == (
        DeclaredMetric("Calls", MetricKind.COUNTER, "Count", ("ModelName",)),
        DeclaredMetric("Bare", MetricKind.COUNTER, "Count", ()),
        DeclaredMetric("HandlerTime", MetricKind.GAUGE, "ms", ("ModelName", "Level")),
    )
    assert read_metrics_config(None) == DEFAULT_METRICS


@pytest.mark.parametrize(
    "text", ["", "[]", "model_metrics: [1]", "{", "model_metrics: {gauge: [{}]}"]
)
def test_metrics_config_of_another_shape_is_refused(text, tmp_path):
    # Given
    path = tmp_path / "metrics.yaml"
    path.write_text(text)
    # When / Then
    with pytest.raises(SettingsError, match="model_metrics"):
        read_metrics_config(path)
    with pytest.raises(SettingsError, match="cannot read"):
        read_metrics_config(tmp_path / "none.yaml")


def test_metrics_are_lines_in_the_log_when_torchserves_mode_says_so(make, caplog):
    # Given
    store, report = make(is_showing_all=False, is_logging=True)
    # When
    store.add_time("HandlerTime", 12.5, None, "ms")
    with caplog.at_level("INFO", "MODEL_METRICS"):
        report()
    # Then
    [record] = [each for each in caplog.records if each.name == "MODEL_METRICS"]
    start = f"HandlerTime.ms:12.5|#ModelName:m,Level:Model|#hostname:{HOST},timestamp:"
    assert record.getMessage().startswith(start)
