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
    """Describes one worker process, as its node did last."""

    worker_id: str
    node_id: str
    slot: int  # from 0 over the node's slots for this version
    state: WorkerState
    pid: int
    device: str
    started_at: str
    memory_bytes: int = 0
    failures: int = 0  # starts since the last successful load
    error: str = ""  # why the last start failed, for operators only
    traceback: str = ""  # where in the model's own files
    reason: str = ""  # a word for machines
    is_out_of_memory: bool = False
    load_ms: int = 0
    # The model's inputs and outputs; empty for TorchServe's handlers.
    interface: Mapping[str, Any] = field(default_factory=dict)


class HostSample(msgspec.Struct, array_like=True, frozen=True):
    """Holds a measurement of a host, or of its GPU `device_id`, in TorchServe's name and unit."""

    name: str
    value: float
    device_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus(_Record):
    """Describes a live node; `samples` are its latest measurements of its host."""

    node_id: str
    hostname: str
    pid: int
    started_at: str
    samples: tuple[HostSample, ...] = ()
    wire_version: int = 1  # which the releases that did not write it had
    lines_dropped: int = 0  # log lines that its outputs did not take


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Describes the queue of one model version."""

    waiting: int
    capacity: int
    open_requests: int  # waiting, or owned by workers
    oldest_age_s: float  # of the oldest waiting request; 0 without one
    jobs: int  # that wait in a queue of their own
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
