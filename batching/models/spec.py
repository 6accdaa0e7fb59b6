"""What a registered model version is."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from batching.models.parameters import parameter, parameters_of

# What keys, paths and labels can hold without being quoted.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# A plus stands before what a version says of its build: 1.0+cpu.
VERSION_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
DEFAULT_VERSION = "1.0"  # of an archive that names none
BATCH_POLICIES = ("fixed", "adaptive")

_TIMEOUT_REFUSAL = "response_timeout and startup_timeout must be 1 second or more."
_QUEUE_REFUSAL = "jobQueueSize and queue_timeout must be 1 or more."
LATENCY_SLO_REFUSAL = "latency_slo_ms is a number of milliseconds, with batch_policy=adaptive."


def known_fields(of: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record, what this data class has; a later version may have written more.

    Raises:
        TypeError: a field is of another type.
    """
    fields = of.__dataclass_fields__
    known = {name: record[name] for name in fields if name in record}
    for name, value in known.items():
        kind = fields[name].type
        if kind in (str, int, bool) and not isinstance(value, kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    return known


class VersionKey(NamedTuple):
    """Names one version of one model: the unit that queues, batches and workers belong to."""

    model_name: str
    model_version: str


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What a verified archive says of itself."""

    url: str
    sha256: str
    model_name: str
    model_version: str
    handler: str
    runtime: str
    manifest: Mapping[str, Any] | None
    config: Mapping[str, Any]


@dataclass(frozen=True)
class ModelSpec:
    """Everything the registry keeps about a model version. Immutable; scaling writes a new one."""

    model_name: str
    model_version: str
    model_url: str
    handler: str
    runtime: str = "python"
    archive_sha256: str = ""
    min_worker: int = parameter(
        0,
        rest="initial_workers",
        word="minWorkers",
        is_archives=True,
        doc="Workers on each node.",
    )
    max_worker: int = parameter(
        0, word="maxWorkers", doc="At least `minWorkers`, which counts only together with this."
    )
    batch_size: int = parameter(
        1, rest="batch_size", word="batchSize", lowest=1, doc="The most requests in one batch."
    )
    max_batch_delay_ms: int = parameter(
        100,
        rest="max_batch_delay",
        word="maxBatchDelay",
        unit="milliseconds",
        lowest=0,
        doc="How long a batch may wait to fill, from its oldest request on.",
    )
    response_timeout_s: int = parameter(
        120,
        rest="response_timeout",
        word="responseTimeout",
        unit="seconds",
        lowest=1,
        refusal=_TIMEOUT_REFUSAL,
        is_archives=True,
        doc="How long a batch may run.",
    )
    startup_timeout_s: float = parameter(
        120,
        rest="startup_timeout",
        word="startupTimeout",
        unit="seconds",
        lowest=1,
        refusal=_TIMEOUT_REFUSAL,
        is_archives=True,
        doc="How long a worker may load.",
    )
    max_retry_timeout_s: int = parameter(
        300,
        word="maxRetryTimeoutInSec",
        unit="seconds",
        doc="How long a worker that dies is started again and again.",
    )
    client_timeout_ms: int = parameter(
        0,
        word="clientTimeoutInMills",
        unit="milliseconds",
        doc="How long a request may take in all; 0: as long as waiting and running may.",
    )
    device_type: str = parameter("", word="deviceType", doc="`cpu` or `gpu`: where workers run.")
    batch_policy: str = parameter(
        "fixed",
        rest="batch_policy",
        word="batchPolicy",
        choices=BATCH_POLICIES,
        shown_with="batch_policy",
        doc="`fixed`: a batch always waits for more; `adaptive`: only while that pays.",
    )
    latency_slo_ms: int = parameter(
        0,
        rest="latency_slo_ms",
        word="latencySloMs",
        unit="milliseconds",
        lowest=0,
        refusal=LATENCY_SLO_REFUSAL,
        shown_with="batch_policy",
        doc="The 99th percentile that `adaptive` aims at; 0: none.",
    )
    device_ids: tuple[int, ...] = parameter(
        (), word="deviceIds", shown_with="device_ids", doc="The GPUs that workers run on."
    )
    use_job_ticket: bool = parameter(
        False, word="useJobTicket", doc="Accept a request only for an idle worker."
    )
    job_queue_size: int = parameter(
        100,
        word="jobQueueSize",
        lowest=1,
        refusal=_QUEUE_REFUSAL,
        is_described=False,
        doc="The most requests that may wait.",
    )
    queue_timeout_s: float = parameter(
        120.0,
        rest="queue_timeout",
        word="queueTimeout",
        unit="seconds",
        lowest=0,
        refusal=_QUEUE_REFUSAL,
        is_in_files=False,
        is_described=False,
        is_unset_by_zero=True,
        doc="How long a request may wait, on top of `response_timeout`.",
    )
    is_loaded_at_startup: bool = False
    manifest: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    # What only a later version knows: written again as it was, and nothing here depends on it.
    others: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def key(self) -> VersionKey:
        """Returns the version this spec describes."""
        return VersionKey(self.model_name, self.model_version)

    def scaled(self, min_worker: int, max_worker: int) -> "ModelSpec":
        """Returns the same version with other worker counts (per node)."""
        return replace(self, min_worker=min_worker, max_worker=max_worker)

    def is_same_registration(self, other: "ModelSpec") -> bool:
        """Returns whether `other` is this, scaled perhaps.

        Another one may have taken over its name.
        """
        return self.scaled(0, 0) == other.scaled(0, 0)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Returns the spec that `to_record` and JSON made this of.

        Fields of a later version are kept.

        Raises:
            TypeError: they did not; a field is missing, or of another type.
        """
        known = known_fields(cls, record)
        known["device_ids"] = tuple(known.get("device_ids", ()))
        known["others"] = {name: value for name, value in record.items() if name not in known}
        return cls(**known)

    def to_record(self) -> dict[str, Any]:
        """Returns what the registry keeps, and a worker process is told."""
        record = asdict(self)
        return {**record.pop("others"), **record}


PARAMETERS = parameters_of(ModelSpec)
