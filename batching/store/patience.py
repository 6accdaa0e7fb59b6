"""How long an ingress waits for Redis, and what for."""

from dataclasses import dataclass

from batching.store.clients import BLOCK_S


@dataclass(frozen=True, slots=True)
class Patience:
    """Holds the time limits of an ingress's channels."""

    submit_s: float = 0.8  # Redis down at submit is answered within a second
    submit_bytes: int = 16 * 1024 * 1024  # more at once would keep other requests waiting
    bytes_per_s: float = 10_000_000  # what large bodies get time for: a line of 100 Mbit/s
    retry_s: float = 0.05  # between two tries of a call
    block_s: float = BLOCK_S
    read_s: float = 5.0  # Redis may be away for this long in the middle of a stream
    cancel_s: float = 0.06  # an answer is due 0.1 s after the deadline, if Redis answers or not
    back_s: float = 3.0  # Redis counts as just back for this long
    # A refused submit is repeated for this long: a node restores an emptied registry within a beat.
    version_s: float = 1.5
    beat_s: float = 1.0  # a worker that lives has beaten by then
    audit_s: float = 0.5  # losses are noticed within twice this
    resubmit_share: float = 0.25  # of the deadline must be left to submit a lost request again
    unused_s: float = 60.0  # then a channel is closed


USUAL_PATIENCE = Patience()
