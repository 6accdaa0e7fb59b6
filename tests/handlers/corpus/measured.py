"""Every way of measuring something; the answer must not depend on it."""

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class Measured:
    def initialize(self, context):
        metrics = context.metrics
        self.rows = metrics.add_metric_to_cache(
            metric_name="CorpusRows",
            unit="count",
            dimension_names=["ModelName", "Level"],
            metric_type=MetricTypes.COUNTER,
        )
        self.sizes = metrics.add_metric_to_cache(
            "CorpusSizes", "B", ["ModelName"], MetricTypes.HISTOGRAM
        )

    def handle(self, data, context):
        metrics = context.metrics
        metrics.add_counter("CorpusCalls", 1, None, [Dimension("Who", "me")])
        metrics.add_time("CorpusTime", 12.5, None, "ms")
        metrics.add_size("CorpusSize", 3, unit="kB")
        metrics.add_percent("CorpusLoad", 50)
        metrics.add_error("CorpusErrors", 1)
        metrics.add_metric("CorpusValue", 7, "unit", 0, metric_type=MetricTypes.GAUGE)
        self.rows.add_or_update(len(data), [context.model_name, "Model"])
        for row in data:
            self.sizes.add_or_update(len(row["body"]), [context.model_name])
        metrics.get_metric("CorpusCalls")
        return ["measured" for _ in data]
