"""Defines the current states of nodes, workers and queues, as the registry reports them."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import msgspec


class _Record:
    """Reads and writes itself as JSON; a later release may have written more fields."""

    __slots__ = ()

    def to_json(self) -> str:
        # msgspec's own encoder refuses lone surrogates, which a handler's error may have.
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return msgspec.convert(json.loads(text), cls)


class WorkerState(StrEnum):
    """STARTING → LOADING → READY, from any of them back to STARTING; FAILED is not tried again."""

    STARTING = "STARTING"
    LOADING = "LOADING"
    READY = "READY"
    FAILED = "FAILED"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls("LOADING")  # a later release's state: neither ready nor given up


@dataclass(frozen=True, slots=True)
class WorkerStatus(_Record):
    """Describes one worker process, as its node did last.

    `slot` counts from 0 over the node's slots for this version; `failures` counts the starts since
    the last successful load; `error` is why the last start failed, for operators only, `traceback`
    where in the model's own files, and `reason` a word for machines. `interface` describes the
    model's inputs and outputs; it is empty for TorchServe's handlers.
    """

    worker_id: str
    node_id: str
    slot: int
    state: WorkerState
    pid: int
    device: str
    started_at: str
    memory_bytes: int = 0
    failures: int = 0
    error: str = ""
    traceback: str = ""
    reason: str = ""
    is_out_of_memory: bool = False
    load_ms: int = 0
    interface: Mapping[str, Any] = field(default_factory=dict)


class HostSample(msgspec.Struct, array_like=True, frozen=True):
    """Holds a measurement of a host, or of its GPU `device_id`, in TorchServe's name and unit."""

    name: str
    value: float
    device_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus(_Record):
    """Describes a live node; `samples` are its latest measurements of its host.

    `lines_dropped` counts log lines that its outputs did not take. A record without a wire version
    is of a release that wrote version 1.
    """

    node_id: str
    hostname: str
    pid: int
    started_at: str
    samples: tuple[HostSample, ...] = ()
    wire_version: int = 1
    lines_dropped: int = 0


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Describes the queue of one model version.

    `open_requests` counts waiting requests and requests that workers own; `oldest_age_s` is the age
    of the oldest waiting request, or 0. `jobs` wait in a queue of their own.
    """

    waiting: int
    capacity: int
    open_requests: int
    oldest_age_s: float
    jobs: int
    oldest_job_age_s: float
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Describes Redis by its own numbers; `memory_limit_bytes` is 0 without a `maxmemory`."""

    round_trip_s: float
    memory_used_bytes: int
    memory_limit_bytes: int
    clients: int
    commands: int
    evicted_keys: int


def utc_now() -> str:
    """Returns this moment as TorchServe writes dates."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
