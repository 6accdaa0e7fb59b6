"""Makes the JSON documents that describe and list models.

Source: TorchServe 0.12 `DescribeModelResponse`, `ListModelsResponse`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batching.models.registration import int_parameter
from batching.models.spec import PARAMETERS, ModelSpec
from batching.models.statuses import NodeStatus, QueueStatus, WorkerState, WorkerStatus

MAX_PAGE = 100

# Key of describe -> keys that precede it, of features that this server leaves out.
_LEFT_OUT_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "deviceType": {"parallelType": "", "parallelLevel": 0},
}


def describe_version(
    spec: ModelSpec,
    workers: Sequence[WorkerStatus],
    queue: QueueStatus,
    *,
    is_default: bool,
    hosts: Mapping[str, str],
) -> dict[str, Any]:
    """Describes one version: keys in TorchServe's order, then our own.

    `hosts` has the host names of nodes, as far as known.
    """
    document: dict[str, Any] = {
        "modelName": spec.model_name,
        "modelVersion": spec.model_version,
        "modelUrl": spec.model_url,
        "runtime": spec.runtime,
    }
    for parameter in PARAMETERS:
        shown_with = parameter.shown_with
        is_shown = not shown_with or getattr(spec, shown_with) != getattr(ModelSpec, shown_with)
        if parameter.is_described and is_shown:
            document |= _LEFT_OUT_BEFORE.get(parameter.word, {})
            document[parameter.word] = getattr(spec, parameter.name)
    has_gpu = any(worker.device.startswith("cuda") for worker in workers)
    document["deviceType"] = spec.device_type or ("gpu" if has_gpu else "cpu")
    document |= {
        "continuousBatching": False,
        "useJobTicket": spec.config.get("useJobTicket") is True,
        "useVenv": spec.config.get("useVenv") is True,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": spec.is_loaded_at_startup,
        "workers": [_describe_worker(worker, hosts.get(worker.node_id, "")) for worker in workers],
        "jobQueueStatus": {
            "remainingCapacity": max(0, queue.capacity - queue.waiting),
            "pendingRequests": queue.waiting,
        },
        "isDefault": is_default,
    }
    if spec.load_error:
        document["error"] = spec.load_error
    return document


def describe_node(node: NodeStatus) -> dict[str, Any]:
    """Describes a live node, with the keys that describe has for a worker."""
    return {
        "node": node.node_id,
        "host": node.hostname,
        "pid": node.pid,
        "startTime": node.started_at,
    }


def list_page(urls: Mapping[str, str], parameters: Mapping[str, str]) -> dict[str, Any]:
    """Lists one page of the models, sorted by name. A full page has a token for the next one.

    Args:
        urls: name to the default version's archive.
        parameters: `limit` and `next_page_token` as the client sent them.
    """
    names = sorted(urls)
    limit = int_parameter(parameters, "limit", MAX_PAGE)
    if not 0 <= limit <= MAX_PAGE:
        limit = MAX_PAGE
    start = max(0, int_parameter(parameters, "next_page_token", 0))
    end = start + limit
    page: dict[str, Any] = {} if end > len(names) else {"nextPageToken": str(end)}
    page["models"] = [{"modelName": name, "modelUrl": urls[name]} for name in names[start:end]]
    return page


def _describe_worker(worker: WorkerStatus, host: str) -> dict[str, Any]:
    kind, _, index = worker.device.partition(":")
    is_gpu = kind == "cuda"
    document: dict[str, Any] = {
        "id": worker.worker_id,
        "startTime": worker.started_at,
        "status": "READY" if worker.state is WorkerState.READY else "UNLOADING",
        "memoryUsage": worker.memory_bytes,
        "pid": worker.pid,
        "gpu": is_gpu,
        "gpuUsage": f"gpuId::{index or 0}" if is_gpu else "N/A",
        # Beyond TorchServe, so at the end.
        "node": worker.node_id,
    }
    if host:
        document["host"] = host
    if worker.state is not WorkerState.READY:
        # TorchServe calls all of these UNLOADING.
        document["state"] = worker.state.value
    if worker.error:
        document["error"] = worker.error
    return document
