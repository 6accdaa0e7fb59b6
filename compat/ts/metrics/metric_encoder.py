"""Writes metrics as JSON."""

import json
from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric


class MetricEncoder(json.JSONEncoder):
    """Serves `json.dumps(metric, cls=MetricEncoder)`."""

    def default(self, o: Any) -> Any:
        return o.to_dict() if isinstance(o, Metric | Dimension) else super().default(o)
