"""Writes TorchServe's own metrics as its log lines; has their names and units.

Source: TorchServe 0.12 docs/metrics.md and ts/configs/metrics.yaml.
"""

import datetime
import logging
import socket
from collections.abc import Mapping

from batching.models.spec import VersionKey
from batching.models.statuses import HostSample

# Operators of TorchServe look for these names.
metric_log = logging.getLogger("TS_METRICS")
model_metric_log = logging.getLogger("MODEL_METRICS")

# Where its lines are also found, if files are written: in this folder, or with the other logs.
METRICS_VARIABLE = "METRICS_LOCATION"
MODEL_METRICS_FILE = "model_metrics.log"

COUNTERS = {
    "Requests2XX": "Count",
    "Requests4XX": "Count",
    "Requests5XX": "Count",
    "ts_inference_requests_total": "Count",
    "ts_inference_latency_microseconds": "Microseconds",
    "ts_queue_latency_microseconds": "Microseconds",
}
GAUGES = {
    "QueueTime": "Milliseconds",
    "WorkerThreadTime": "Milliseconds",
    "WorkerLoadTime": "Milliseconds",
    "CPUUtilization": "Percent",
    "MemoryUsed": "Megabytes",
    "MemoryAvailable": "Megabytes",
    "MemoryUtilization": "Percent",
    "DiskUsage": "Gigabytes",
    "DiskAvailable": "Gigabytes",
    "DiskUtilization": "Percent",
    "GPUMemoryUtilization": "Percent",
    "GPUMemoryUsed": "Megabytes",
    "GPUUtilization": "Percent",
}
HOST_LEVEL = {"Level": "Host"}


def metric_line(
    name: str, value: float, dimensions: Mapping[str, str], hostname: str, unit: str = ""
) -> str:
    """Returns one update as TorchServe logs it; TorchServe's own metrics need no `unit`."""
    unit = unit or COUNTERS.get(name) or GAUGES[name]
    labels = ",".join(f"{key}:{text}" for key, text in dimensions.items())
    timestamp = int(datetime.datetime.now(datetime.UTC).timestamp())
    return f"{name}.{unit}:{float(value)}|#{labels}|#hostname:{hostname},timestamp:{timestamp}"


def host_dimensions(sample: HostSample) -> dict[str, str]:
    return {**HOST_LEVEL, **({"DeviceId": sample.device_id} if sample.device_id else {})}


def worker_dimensions(worker_id: str, key: VersionKey) -> dict[str, str]:
    return {"WorkerName": f"W-{worker_id}-{key.model_name}_{key.model_version}", **HOST_LEVEL}


def log_load_time(worker_id: str, key: VersionKey, load_ms: int) -> None:
    """Logs how long a worker took to load its model."""
    dimensions = worker_dimensions(worker_id, key)
    metric_log.info(metric_line("WorkerLoadTime", load_ms, dimensions, socket.gethostname()))
