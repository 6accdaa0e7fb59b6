"""Every key name, with its Redis type, its TTL and who deletes it.

All keys of a model version share one hash tag, so each script and each blocking call touches one
cluster slot. A key without a TTL is marked permanent and says who deletes it. RQ names its own keys
(`rq:*`) for control jobs; nothing else is stored.
"""

from dataclasses import dataclass, fields
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
# zset   version as JSON -> when its last job with a webhook has gone, Redis ms; TTL of that job
WEBHOOK_VERSIONS = f"{HOME}:webhook_versions"

# RQ's name of the queue of control jobs
CONTROL_QUEUE = "ferry-control"

PERMANENT = frozenset({MODELS, NODE_INFO, EPOCH, STARTED})

LEASE_TTL_MS = 24 * 3600 * 1000
# Of what is permanent while a version is registered; no node may be there to delete it.
UNREGISTERED_TTL_MS = LEASE_TTL_MS
REPLY_TTL_MS = 60_000


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


@dataclass(frozen=True, slots=True)
class VersionKeys:
    """Names the keys of one model version: the tag, and each default after it.

    Prefixes end in ':' and are completed with an id.
    """

    tag: str
    # hash   max_queue and jobs; permanent, deleted at unregistration. Without max_queue there is no
    #        such version. jobs is 0 while no job waits in job_queue
    config: str = "config"
    # list   ids of requests, first attempts, oldest first; permanent, empty when idle
    queue: str = "queue"
    # list   ids of requests to run alone, as a worker died with them; permanent, empty when idle
    suspects: str = "suspects"
    # hash   request id -> record (records.py) of all open requests, waiting and leased; fields
    #        deleted by reply, cancel and whoever gives one up; TTL as job_queue
    open: str = "requests"
    # list   ids of jobs, oldest first, which take the seats that requests leave free; TTL of the
    #        longest-lived + 60 to 120 s
    job_queue: str = "job_queue"
    # hash   + job id (jobs/job_records.py); TTL its deadline, and how long it is kept
    job_prefix: str = "jobs:"
    # zset   '<job id> <event>' -> when a receiver is to hear of it, Redis ms; TTL of the
    #        longest-lived job in it. Scripts make this name of the prefix of jobs
    webhooks: str = "jobs:webhooks"
    # zset   job id -> Redis us of its submit; TTL of the longest-lived job. Those whose job has
    #        gone are deleted by later submits, and by those who list them
    job_index: str = "job_index"
    # list   wake-up tokens for idle workers; TTL 60 s
    wakeups: str = "wakeups"
    # hash   worker, limit: the one that collects a partial batch; TTL its window + 500 ms
    gather: str = "collector"
    # list   + worker id: wakes that collector when the batch is full; TTL 60 s
    more_prefix: str = "full_batch:"
    # string + request id: a body too large for its record; TTL its deadline + 60 s
    body_prefix: str = "bodies:"
    # string + request id: the reply; TTL 60 s, deleted by the ingress that received it
    reply_prefix: str = "replies:"
    # string + request id ':' attempt: a reply too large for a script; TTL 60 s. Of a job
    #        + '-' worker id; TTL the job's
    large_reply_prefix: str = "large_replies:"
    # list   + request id: pieces of an answer that its ingress has not sent on, at most some 64 of
    #        16 KiB; TTL 60 s, renewed by each piece, deleted by the ingress and by cancel
    chunk_prefix: str = "chunks:"
    # list   + ingress id: what waits for that ingress; TTL 60 s. '<request id> <value of its reply
    #        key>', or an id alone, whose reply or chunks are in keys of their own
    done_prefix: str = "answered:"
    # list   + worker id: '<request id>:<attempt>' of what it owns; TTL 24 h, renewed by beats
    lease_prefix: str = "leases:"
    # zset   worker id -> last beat, Redis ms; TTL 24 h, renewed by beats
    worker_beats: str = "worker_beats"
    # hash   worker id -> WorkerStatus as JSON; permanent, fields deleted by nodes. What is left of
    #        dead nodes is deleted with the counters
    workers: str = "workers"
    # zset   ingress id -> last beat, Redis ms; TTL 24 h, renewed by beats. Nodes delete those that
    #        have been silent for a minute
    ingress_beats: str = "ingress_beats"
    # hash   counters (accepted, replied, cancelled, ...); permanent, deleted by nodes once the
    #        version is unregistered and idle
    counters: str = "counters"
    # hash   what handlers have measured; permanent, deleted with the counters
    metrics: str = "handler_metrics"

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, key: VersionKey, wire_version: int = WIRE_VERSION) -> "VersionKeys":
        """Returns the keys of this version.

        Releases that cannot read each other's requests never meet in one queue: an ingress finds no
        worker of its own release, and answers so at once (docs/adr/0016-releases.md).
        """
        kind = "m" if wire_version == 1 else f"model{wire_version}"
        return cls.after(f"{{{kind}:{key.model_name}:{key.model_version}}}")

    @classmethod
    def after(cls, tag: str) -> "VersionKeys":
        _, *names = fields(cls)
        return cls(tag, *(f"{tag}:{name.default}" for name in names))

    def permanent(self) -> frozenset[str]:
        """Returns the keys of this version that may stay without a TTL while it is registered.

        From its unregistration on they have one of 24 h.
        """
        names = {self.config, self.queue, self.suspects, self.workers, self.counters, self.metrics}
        return frozenset(names)
