"""Defines a registered model version, `ModelSpec`, and its parameters."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import msgspec

from batching.models.parameters import parameter, parameters_of

# Names that keys, paths and labels can hold without being quoted.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# A plus stands before the build: 1.0+cpu.
VERSION_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
DEFAULT_VERSION = "1.0"  # of an archive that names none
BATCH_POLICIES = ("fixed", "adaptive")

# Handlers that are given requests as they came, and decode them by what their models take.
DECODING_HANDLERS = frozenset({"python_model", "tensor_model"})
# The header in which such a handler finds the query string.
URL_QUERY = "url_query"

INSTALL_TIMEOUT_S = 600.0  # for the requirements of one archive

# In the place of a name in requests.
FILES_ONLY = ""

_TIMEOUT_REFUSAL = "response_timeout and startup_timeout must be 1 second or more."
_QUEUE_REFUSAL = "jobQueueSize and queue_timeout must be 1 or more."
LATENCY_SLO_REFUSAL = "latency_slo_ms is a number of milliseconds, with batch_policy=adaptive."


class VersionKey(NamedTuple):
    """Names one version of one model: the unit that queues, batches and workers belong to."""

    model_name: str
    model_version: str


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """The manifest and the configuration of a verified archive."""

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
    """Everything that the registry keeps about a model version; scaling writes a new one.

    The parameters stand in the order in which describe shows them.
    """

    model_name: str
    model_version: str
    model_url: str
    handler: str
    runtime: str = "python"
    archive_sha256: str = ""
    min_worker: int = parameter(
        0, "initial_workers", "minWorkers", is_archives=True, doc="Workers on each node."
    )
    max_worker: int = parameter(
        0,
        FILES_ONLY,
        "maxWorkers",
        doc="At least `minWorkers`, which counts only together with this.",
    )
    batch_size: int = parameter(
        1, "batch_size", "batchSize", lowest=1, doc="The most requests in one batch."
    )
    max_batch_delay_ms: int = parameter(
        100,
        "max_batch_delay",
        "maxBatchDelay",
        lowest=0,
        doc="How long a batch may wait to fill, from its oldest request on.",
    )
    response_timeout_s: int = parameter(
        120,
        "response_timeout",
        "responseTimeout",
        lowest=1,
        refusal=_TIMEOUT_REFUSAL,
        is_archives=True,
        doc="How long a batch may run.",
    )
    startup_timeout_s: int | float = parameter(
        120,
        "startup_timeout",
        "startupTimeout",
        lowest=1,
        refusal=_TIMEOUT_REFUSAL,
        is_archives=True,
        doc="How long a worker may load.",
    )
    max_retry_timeout_s: int = parameter(
        300,
        FILES_ONLY,
        "maxRetryTimeoutInSec",
        doc="How long a worker that dies is started again and again.",
    )
    client_timeout_ms: int = parameter(
        0,
        FILES_ONLY,
        "clientTimeoutInMills",
        doc="How long a request may take in all; 0: as long as waiting and running may.",
    )
    device_type: str = parameter(
        "", FILES_ONLY, "deviceType", doc="`cpu` or `gpu`: where workers run."
    )
    batch_policy: str = parameter(
        "fixed",
        "batch_policy",
        "batchPolicy",
        choices=BATCH_POLICIES,
        shown_with="batch_policy",
        doc="`fixed`: a batch always waits for more; `adaptive`: only while that pays.",
    )
    latency_slo_ms: int = parameter(
        0,
        "latency_slo_ms",
        "latencySloMs",
        lowest=0,
        refusal=LATENCY_SLO_REFUSAL,
        shown_with="batch_policy",
        doc="The 99th percentile that `adaptive` aims at; 0: none.",
    )
    async_after_s: int = parameter(
        0,
        "async_after",
        "asyncAfter",
        lowest=0,
        shown_with="async_after_s",
        doc="After so long a client is given a job instead of an answer; 0: never.",
    )
    device_ids: tuple[int, ...] = parameter(
        (), FILES_ONLY, "deviceIds", shown_with="device_ids", doc="The GPUs that workers run on."
    )
    job_queue_size: int = parameter(
        100,
        FILES_ONLY,
        "jobQueueSize",
        lowest=1,
        refusal=_QUEUE_REFUSAL,
        is_described=False,
        doc="The most requests that may wait.",
    )
    queue_timeout_s: float = parameter(
        120.0,
        "queue_timeout",
        "queueTimeout",
        lowest=0,
        refusal=_QUEUE_REFUSAL,
        is_described=False,
        is_unset_by_zero=True,
        doc="How long a request may wait, on top of `response_timeout`.",
    )
    is_loaded_at_startup: bool = False
    # Why its archive could not be loaded when a server started. It has no workers then.
    load_error: str = ""
    # Its record in the snapshot that named it; later snapshots keep it until the version is loaded.
    saved_as: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    # Fields of a later release: written back as they were.
    others: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def key(self) -> VersionKey:
        return VersionKey(self.model_name, self.model_version)

    @cached_property
    def decodes_itself(self) -> bool:
        """Returns whether its handler decodes requests, which it is given as they came."""
        return self.handler in DECODING_HANDLERS

    @property
    def requirements_file(self) -> str:
        """Returns the requirements.txt that the archive's manifest names; empty without one."""
        model = (self.manifest or {}).get("model")
        name = model.get("requirementsFile") if isinstance(model, dict) else None
        return name if isinstance(name, str) else ""

    def scaled(self, min_worker: int, max_worker: int) -> "ModelSpec":
        return replace(self, min_worker=min_worker, max_worker=max_worker)

    def is_same_registration(self, other: "ModelSpec") -> bool:
        """Returns whether `other` is this registration, scaled perhaps, and not a later one."""
        return self.scaled(0, 0) == other.scaled(0, 0)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Builds the spec from what `to_record` returned; keeps fields of a later release.

        Raises:
            ValueError: a field is missing, or has the wrong type.
        """
        known = cls.__dataclass_fields__
        others = {name: value for name, value in record.items() if name not in known}
        return replace(msgspec.convert(record, cls), others=others)

    def to_record(self) -> dict[str, Any]:
        record = asdict(self)
        return {**record.pop("others"), **record}


PARAMETERS = parameters_of(ModelSpec)
