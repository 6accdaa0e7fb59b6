"""Measures the host and the workers' memory at intervals, under TorchServe's names and units.

Source: TorchServe 0.12 ts/metrics/system_metrics.py, `MetricCollector`.
"""

import asyncio
import logging
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import psutil

from batching.metrics import host_dimensions, metric_line, metric_log
from batching.models.statuses import HostSample, NodeStatus
from batching.process.daemon_thread import in_daemon_thread
from batching.process.outputs import dropped_lines
from batching.settings.settings import Settings
from batching.store.node_queue import NodeQueue
from batching.store.redis_errors import OutageLog, RedisError
from workers.machine import ask_nvidia_smi
from workers.slots.slot import Slot

log = logging.getLogger(__name__)

FIRST_S = 2.0  # the node has joined by then, and its workers have begun to start
_MEGABYTE, _GIGABYTE = 2**20, 2**30
_CPU_WINDOW_S = 0.1
_GPU_QUERY = ("index", "memory.used", "memory.total", "utilization.gpu")


async def report_host(
    queue: NodeQueue,
    node: NodeStatus,
    slots: Callable[[], Iterable[Slot]],
    settings: Settings,
    outage: OutageLog,
) -> None:
    """Reports what `measure` finds, and has each slot report its memory, until cancelled."""
    await asyncio.sleep(FIRST_S)
    while True:
        try:
            samples = await in_daemon_thread(measure)
            await queue.describe(replace(node, samples=samples, lines_dropped=dropped_lines()))
            for slot in list(slots()):
                await slot.measure()
            for sample in samples if settings.is_logging_metrics else ():
                dimensions = host_dimensions(sample)
                metric_log.info(metric_line(sample.name, sample.value, dimensions, node.hostname))
        except RedisError as error:
            outage.note("measure", error)
        except Exception as error:  # whatever host and driver say, the node serves on
            log.warning("not measured: %r", error)
        else:
            outage.over("measure")
        await asyncio.sleep(settings.metric_time_interval_s)


def measure() -> tuple[HostSample, ...]:
    """Returns how busy the host and its GPUs are. Blocks for 0.1 s, and while nvidia-smi runs."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    host = {
        "CPUUtilization": psutil.cpu_percent(_CPU_WINDOW_S),
        "DiskAvailable": disk.free / _GIGABYTE,
        "DiskUsage": disk.used / _GIGABYTE,
        "DiskUtilization": disk.percent,
        "MemoryAvailable": memory.available / _MEGABYTE,
        "MemoryUsed": memory.used / _MEGABYTE,
        "MemoryUtilization": memory.percent,
    }
    samples = [HostSample(name, value) for name, value in host.items()]
    try:
        query = f"--query-gpu={','.join(_GPU_QUERY)}"
        for line in ask_nvidia_smi(query, "--format=csv,noheader,nounits") or ():
            samples.extend(gpu_samples(line))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("GPUs not measured: %s", error)
    return tuple(samples)


def gpu_samples(line: str) -> Iterator[HostSample]:
    """Yields the samples of one GPU, from a line `index, MiB used, MiB in all, percent busy`.

    Leaves out values that the card does not know (`[N/A]`), and other lines, such as "No devices
    were found".
    """
    index, *values = (value.strip() for value in line.split(","))
    if len(values) != len(_GPU_QUERY) - 1:
        return
    used, total, busy = (float(value) if value.isdecimal() else None for value in values)
    if used is not None:
        yield HostSample("GPUMemoryUsed", used, index)
        if total:
            yield HostSample("GPUMemoryUtilization", 100 * used / total, index)
    if busy is not None:
        yield HostSample("GPUUtilization", busy, index)
