"""What a registered model version is."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

# What keys, paths and labels can hold without being quoted.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# A plus stands before what a version says of its build: 1.0+cpu.
VERSION_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
DEFAULT_VERSION = "1.0"  # of an archive that names none
BATCH_POLICIES = ("fixed", "adaptive")


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
    batch_size: int = 1
    max_batch_delay_ms: int = 100
    batch_policy: str = "fixed"
    latency_slo_ms: int = 0
    response_timeout_s: int = 120
    startup_timeout_s: float = 120
    queue_timeout_s: float = 120.0
    client_timeout_ms: int = 0
    max_retry_timeout_s: int = 300
    job_queue_size: int = 100
    use_job_ticket: bool = False
    min_worker: int = 0
    max_worker: int = 0
    device_type: str = ""
    device_ids: tuple[int, ...] = ()
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
