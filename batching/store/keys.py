"""Every key name, with its Redis type, its TTL and who deletes it.

All keys of a model version share one hash tag, so each script and each blocking call touches one
cluster slot. A key without a TTL is marked permanent and says who deletes it. RQ names its own keys
(`rq:*`) for control jobs; nothing else is stored.
"""

from dataclasses import dataclass
from functools import lru_cache

from batching.models.spec import VersionKey
from batching.protocol import WIRE_VERSION

# The hash tag of the cluster-wide keys, and of RQ's in a cluster.
HOME = "{ferry}"

# Cluster-wide keys. Permanent: they are the registry itself.
MODELS = (
    f"{HOME}:models"  # hash   model name -> ModelEntry as JSON; field deleted at unregistration
)
NODES = f"{HOME}:nodes"  # zset   node id -> last beat, Redis ms; TTL 24 h, renewed by every beat
NODE_INFO = f"{HOME}:node_info"  # hash   node id -> NodeStatus as JSON; deleted by nodes
EPOCH = f"{HOME}:epoch"  # random string; permanent. Missing or another: Redis was emptied
STARTED = f"{HOME}:startup_models"  # hash   entry of load_models -> 1; never deleted
CHANGES = f"{HOME}:changes"  # pub/sub channel: name of the model whose registry or workers changed


def job_version(job_id: str) -> str:
    """Returns the key of a string: model and version of this job, as JSON; TTL that of the job.

    In a cluster such keys are in a few slots, each of which costs an ingress a connection.
    """
    return f"{{ferry_jobs:{job_id[-1:]}}}:versions:{job_id}"


def idempotency_key(digest: str) -> str:
    """Returns the key of a string: what was accepted under this Idempotency-Key; TTL of the job."""
    return f"{{ferry_jobs:{digest[-1:]}}}:idempotency:{digest}"


def tag_of(name: str) -> str:
    """Returns the hash tag of such a key, by which its server is found."""
    return name[: name.index("}") + 1]


# zset   version as JSON -> when its last job with a webhook has gone, Redis ms; TTL of that job
WEBHOOK_VERSIONS = f"{HOME}:webhook_versions"

PERMANENT = frozenset({MODELS, NODE_INFO, EPOCH, STARTED})

LEASE_TTL_MS = 24 * 3600 * 1000
# Of what is permanent while a version is registered; no node may be there to delete it.
UNREGISTERED_TTL_MS = LEASE_TTL_MS
REPLY_TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class VersionKeys:
    """The keys of one model version. Prefixes end in ':' and are completed with an id."""

    tag: str

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, key: VersionKey, wire_version: int = WIRE_VERSION) -> "VersionKeys":
        """Returns the keys of this version.

        Releases that cannot read each other's requests never meet in one queue: an ingress finds no
        worker of its own release, and answers so at once (docs/adr/0016-releases.md).
        """
        kind = "m" if wire_version == 1 else f"model{wire_version}"
        return cls(f"{{{kind}:{key.model_name}:{key.model_version}}}")

    @property
    def config(self) -> str:
        """Hash: max_queue and jobs; permanent, deleted at unregistration.

        Without max_queue there is no such version. jobs is 0 while no job waits in `job_queue`.
        """
        return f"{self.tag}:config"

    @property
    def queue(self) -> str:
        """List of request ids, first attempts, oldest first; permanent, empty when idle."""
        return f"{self.tag}:queue"

    @property
    def suspects(self) -> str:
        """List of request ids to run alone, as a worker died with them.

        Permanent, empty when idle.
        """
        return f"{self.tag}:suspects"

    @property
    def open(self) -> str:
        """Hash request id -> record (records.py) of all open requests, waiting and leased.

        TTL that of the longest-lived + 60 to 120 s; fields deleted by reply, cancel and whoever
        gives one up.
        """
        return f"{self.tag}:requests"

    @property
    def job_queue(self) -> str:
        """List of ids of jobs, oldest first, which take the seats that requests leave free.

        TTL of the longest-lived + 60 to 120 s.
        """
        return f"{self.tag}:job_queue"

    @property
    def job_prefix(self) -> str:
        """Hash, + job id (jobs/job_records.py); TTL: its deadline, and how long it is kept."""
        return f"{self.tag}:jobs:"

    @property
    def webhooks(self) -> str:
        """Zset '<job id> <event>' -> when a receiver is to hear of it, Redis ms.

        TTL of the longest-lived job in it. Scripts make this name of the prefix of jobs.
        """
        return f"{self.job_prefix}webhooks"

    @property
    def job_index(self) -> str:
        """Zset job id -> Redis us of its submit; TTL of the longest-lived job.

        Those whose job has gone are deleted by later submits, and by those who list them.
        """
        return f"{self.tag}:job_index"

    @property
    def wakeups(self) -> str:
        """List of wake-up tokens for idle workers; TTL 60 s."""
        return f"{self.tag}:wakeups"

    @property
    def gather(self) -> str:
        """Hash worker, limit: the one that collects a partial batch; TTL its window + 500 ms."""
        return f"{self.tag}:collector"

    @property
    def more_prefix(self) -> str:
        """List, + worker id: wakes that collector when the batch is full; TTL 60 s."""
        return f"{self.tag}:full_batch:"

    @property
    def body_prefix(self) -> str:
        """String, + request id: a body too large for its record; TTL its deadline + 60 s."""
        return f"{self.tag}:bodies:"

    @property
    def reply_prefix(self) -> str:
        """String, + request id: the reply; TTL 60 s, deleted by the ingress that received it."""
        return f"{self.tag}:replies:"

    @property
    def large_reply_prefix(self) -> str:
        """String, + request id ':' attempt: a reply too large for a script; TTL 60 s.

        Of a job + '-' worker id; TTL the job's.
        """
        return f"{self.tag}:large_replies:"

    @property
    def chunk_prefix(self) -> str:
        """List, + request id: pieces of an answer that its ingress has not sent on.

        At most some 64 of 16 KiB; TTL 60 s, renewed by each piece, deleted by the ingress and by
        cancel.
        """
        return f"{self.tag}:chunks:"

    @property
    def done_prefix(self) -> str:
        """List, + ingress id: what waits for that ingress; TTL 60 s.

        '<request id> <value of its reply key>', or an id alone, whose reply or chunks are in keys
        of their own.
        """
        return f"{self.tag}:answered:"

    @property
    def lease_prefix(self) -> str:
        """List, + worker id: '<request id>:<attempt>' of what it owns.

        TTL 24 h, renewed by beats.
        """
        return f"{self.tag}:leases:"

    @property
    def worker_beats(self) -> str:
        """Zset worker id -> last beat, Redis ms; TTL 24 h, renewed by beats."""
        return f"{self.tag}:worker_beats"

    @property
    def workers(self) -> str:
        """Hash worker id -> WorkerStatus as JSON; permanent, fields deleted by nodes.

        What is left of dead nodes is deleted with the counters.
        """
        return f"{self.tag}:workers"

    @property
    def ingress_beats(self) -> str:
        """Zset ingress id -> last beat, Redis ms; TTL 24 h, renewed by beats.

        Nodes delete those that have been silent for a minute.
        """
        return f"{self.tag}:ingress_beats"

    @property
    def counters(self) -> str:
        """Hash of counters (accepted, replied, cancelled, ...).

        Permanent, deleted by nodes once the version is unregistered and idle.
        """
        return f"{self.tag}:counters"

    @property
    def metrics(self) -> str:
        """Hash of what handlers have measured; permanent, deleted with the counters."""
        return f"{self.tag}:handler_metrics"

    def permanent(self) -> frozenset[str]:
        """Returns the keys of this version that may stay without a TTL while it is registered.

        From its unregistration on they have one of 24 h.
        """
        return frozenset(
            {
                self.config,
                self.queue,
                self.suspects,
                self.workers,
                self.counters,
                self.metrics,
            }
        )
