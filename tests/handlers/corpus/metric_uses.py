"""One use of `context.metrics` for each request, and what the handler sees of it."""

import threading

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

KINDS = (KeyError, TypeError, ValueError)


class MetricUses:
    def initialize(self, context):
        context.metrics.add_counter("CorpusLoads", 1, dimensions=[])
        self.labels = [Dimension("Kept", "yes")]

    def handle(self, data, context):
        return [self.outcome(bytes(row["body"]).decode(), context.metrics) for row in data]

    def outcome(self, use, metrics):
        try:
            result = getattr(self, use)(metrics)
        except KINDS as error:
            return [kind.__name__ for kind in KINDS if isinstance(error, kind)]
        return shown(result) if hasattr(result, "unit") else result

    def counter_of_a_row(self, metrics):
        return metrics.add_counter("CorpusOfRow", 2, 0)

    def counter_again(self, metrics):
        return [metrics.add_counter(name="CorpusOfRow", value=3, idx=0) for _ in range(2)]

    def counter_below_zero(self, metrics):
        return metrics.add_counter("CorpusOfRow", -1, 0)

    def time_in_seconds(self, metrics):
        return metrics.add_time("CorpusSeconds", 1.5, unit="s")

    def time_in_hours(self, metrics):
        return metrics.add_time("CorpusHours", 1, unit="h")

    def time_as_histogram(self, metrics):
        return metrics.add_time("CorpusTimes", 3, metric_type=MetricTypes.HISTOGRAM)

    def size_by_default(self, metrics):
        return metrics.add_size("CorpusMegabytes", 1)

    def size_in_bits(self, metrics):
        return metrics.add_size("CorpusBits", 1, unit="bit")

    def percent_with_labels(self, metrics):
        return metrics.add_percent("CorpusShare", 99.5, dimensions=[Dimension("Part", "a b")])

    def labels_kept_by_the_handler(self, metrics):
        for _ in range(2):
            metrics.add_counter("CorpusKept", 1, None, self.labels)
        return sorted({label.name for label in self.labels} & {"Kept"})

    def error_with_labels(self, metrics):
        return metrics.add_error("CorpusMistakes", 4, [Dimension("Level", "Mine")])

    def unit_of_my_own(self, metrics):
        return metrics.add_metric("CorpusOwnUnit", 2.5, unit="furlongs")

    def gauge_replaced(self, metrics):
        for value in (5, 4):
            metrics.add_metric("CorpusGauge", value, "count", metric_type=MetricTypes.GAUGE)

    def one_name_of_two_types(self, metrics):
        counter = metrics.add_metric_to_cache("CorpusTyped", "count", ["A"])
        gauge = metrics.add_metric_to_cache("CorpusTyped", "count", ["A"], MetricTypes.GAUGE)
        return [shown(metric) for metric in (counter, gauge)]

    def cached(self, metrics):
        metrics.add_metric_to_cache("CorpusCached", "ms", ["A", "B"], MetricTypes.GAUGE)
        metric = metrics.get_metric("CorpusCached", MetricTypes.GAUGE)
        metric.add_or_update(1.25, ["a", "b"])
        return metric

    def cached_with_too_few_labels(self, metrics):
        metric = metrics.add_metric_to_cache("CorpusFew", "ms", ["A", "B"], MetricTypes.GAUGE)
        return metric.add_or_update(1, ["a"])

    def cached_without_labels(self, metrics):
        return metrics.add_metric_to_cache("CorpusBare", "count").add_or_update(6)

    def updated_with_labels(self, metrics):
        metric = metrics.add_metric_to_cache("CorpusUpdated", "count", ["A"])
        metric.update(2, "an id", [Dimension("B", "b")])
        return metric

    def of_the_configuration(self, metrics):
        return metrics.get_metric("HandlerTime", MetricTypes.GAUGE)

    def unknown(self, metrics):
        return metrics.get_metric("CorpusUnknown")

    def name_that_is_no_text(self, metrics):
        return metrics.add_metric_to_cache(7, "count")

    def in_a_thread(self, metrics):
        thread = threading.Thread(target=metrics.add_counter, args=("CorpusThread", 1, 0))
        thread.start()
        thread.join()

    def what_it_knows(self, metrics):
        return [metrics.model_name, len(metrics.request_ids)]


def shown(metric):
    names = ("metric_name", "unit", "dimension_names")
    return [*(getattr(metric, name) for name in names), metric.metric_type.value]
