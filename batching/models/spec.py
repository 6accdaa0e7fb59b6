"""Defines a registered model version and its parameters, from which much is derived (ADR 0020)."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import msgspec

from batching.errors import BadRequest

# Names that need no quoting in keys, paths and labels.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# A plus stands before the build: 1.0+cpu.
VERSION_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
DEFAULT_VERSION = "1.0"  # of an archive that names none

# Handlers that get requests undecoded, and decode them by the types that their models take.
DECODING_HANDLERS = frozenset({"python_model", "tensor_model"})
# The header in which such a handler finds the query string.
URL_QUERY = "url_query"

INSTALL_TIMEOUT_S = 600.0  # for the requirements of one archive

# Java's int, as in TorchServe: 68 years of seconds. Python reads larger numbers, which no clock or
# system call takes.
MIN_INTEGER, MAX_INTEGER = -(2**31), 2**31 - 1

_UNITS = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}
_KINDS: dict[Any, type] = {int: int, float: int, int | float: int, bool: bool, str: str}


def unit_of(name: str) -> str:
    """Returns the unit in which a field of this name ends."""
    return _UNITS.get(name.rpartition("_")[2], "")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describes one field of a spec that operators may set."""

    name: str  # the field
    kind: type  # what requests and files hold: int, bool, str, or list (of integers)
    default: Any  # where neither a request nor a file has a value
    word: str  # TorchServe's name in files, snapshots and describe
    doc: str  # one sentence for people
    # The parameter of `POST /models`; "" where only the archive can say it. Snapshots keep what a
    # request can say: the archive brings the rest back.
    rest: str = ""
    lowest: int = MIN_INTEGER
    choices: tuple[str, ...] = ()  # empty: any text
    is_archives: bool = False  # model-config.yaml wins over the request, not the other way around
    is_described: bool = True
    shown_with: str = ""  # describe shows it only if this field differs from its default
    is_unset_by_zero: bool = False  # a request's 0 means the default

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    def check(self, value: Any) -> None:
        """Raises BadRequest if no version can have this value."""
        if self.choices and value not in self.choices:
            raise BadRequest(f"{self.rest} must be one of {', '.join(self.choices)}.")
        if self.kind is int and value < self.lowest:
            bound = f"{self.lowest} or more {self.unit}".strip()
            raise BadRequest(f"{self.rest or self.word} must be {bound}, not {value}.")


def _parameter(default: Any, word: str, doc: str, **facts: Any) -> Any:
    """Declares a field that is a parameter; `facts` are further attributes of `Parameter`."""
    return field(default=default, metadata={"word": word, "doc": doc, **facts})


def _timeout(word: str, doc: str) -> Any:
    rest = word.replace("Timeout", "_timeout")
    return _parameter(120, word, doc, rest=rest, lowest=1, is_archives=True)


class VersionKey(NamedTuple):
    """Names one version of one model: the unit that queues, batches and workers belong to."""

    model_name: str
    model_version: str


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """Holds the manifest and the configuration of a verified archive."""

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
    """Holds all that the registry keeps about a model version; scaling writes a new one.

    The parameters are in the order in which describe shows them.
    """

    model_name: str
    model_version: str
    model_url: str
    handler: str
    runtime: str = "python"
    archive_sha256: str = ""
    min_worker: int = _parameter(
        0, "minWorkers", "Workers on each node.", rest="initial_workers", is_archives=True
    )
    max_worker: int = _parameter(
        0, "maxWorkers", "At least `minWorkers`, which counts only together with this."
    )
    batch_size: int = _parameter(
        1, "batchSize", "The most requests in one batch.", rest="batch_size", lowest=1
    )
    max_batch_delay_ms: int = _parameter(
        100,
        "maxBatchDelay",
        "How long a batch may wait to fill, from its oldest request on.",
        rest="max_batch_delay",
        lowest=0,
    )
    response_timeout_s: int = _timeout("responseTimeout", "How long a batch may run.")
    startup_timeout_s: int | float = _timeout("startupTimeout", "How long a worker may load.")
    max_retry_timeout_s: int = _parameter(
        300, "maxRetryTimeoutInSec", "How long a worker that dies is started again and again."
    )
    client_timeout_ms: int = _parameter(
        0,
        "clientTimeoutInMills",
        "How long a request may take in all; 0: as long as waiting and running may.",
    )
    device_type: str = _parameter("", "deviceType", "`cpu` or `gpu`: where workers run.")
    batch_policy: str = _parameter(
        "fixed",
        "batchPolicy",
        "`fixed`: a batch always waits for more; `adaptive`: only while that pays.",
        rest="batch_policy",
        choices=("fixed", "adaptive"),
        shown_with="batch_policy",
    )
    latency_slo_ms: int = _parameter(
        0,
        "latencySloMs",
        "The 99th percentile that `adaptive` aims at; 0: none.",
        rest="latency_slo_ms",
        lowest=0,
        shown_with="batch_policy",
    )
    async_after_s: int = _parameter(
        0,
        "asyncAfter",
        "After this time a client is given a job instead of an answer; 0: never.",
        rest="async_after",
        lowest=0,
        shown_with="async_after_s",
    )
    device_ids: tuple[int, ...] = _parameter(
        (), "deviceIds", "The GPUs that workers run on.", shown_with="device_ids"
    )
    job_queue_size: int = _parameter(
        100, "jobQueueSize", "The most requests that may wait.", lowest=1, is_described=False
    )
    queue_timeout_s: float = _parameter(
        120.0,
        "queueTimeout",
        "How long a request may wait, on top of `response_timeout`.",
        rest="queue_timeout",
        lowest=0,
        is_described=False,
        is_unset_by_zero=True,
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
        """Returns whether the handler gets requests undecoded, and decodes them itself."""
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
        """Returns whether `other` is this registration, perhaps scaled, and not a later one."""
        return self.scaled(0, 0) == other.scaled(0, 0)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Builds the spec from the output of `to_record`; keeps fields of a later release.

        It raises ValueError if a field is missing, or has the wrong type.
        """
        known = cls.__dataclass_fields__
        others = {name: value for name, value in record.items() if name not in known}
        return replace(msgspec.convert(record, cls), others=others)

    def to_record(self) -> dict[str, Any]:
        record = asdict(self)
        return {**record.pop("others"), **record}


PARAMETERS = tuple(
    Parameter(it.name, _KINDS.get(it.type, list), it.default, **it.metadata)
    for it in dataclasses.fields(ModelSpec)
    if it.metadata
)
