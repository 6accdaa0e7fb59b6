"""Metrics in JSON."""

import json
from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric


class MetricEncoder(json.JSONEncoder):
    """For `json.dumps(metric, cls=MetricEncoder)`."""

    def default(self, o: Any) -> Any:
        """Metrics and dimensions as TorchServe writes them; nothing else that JSON does not know.

        Raises:
            TypeError: anything else.
        """
        return o.to_dict() if isinstance(o, Metric | Dimension) else super().default(o)
