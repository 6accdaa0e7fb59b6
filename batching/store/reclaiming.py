"""The arguments of `reclaim.lua`, which nodes and workers both call."""

from enum import StrEnum

from batching.models.spec import VersionKey
from batching.store.keys import REPLY_TTL_MS, VersionKeys
from batching.store.scripts.loader import ordered_keys

AT_ONCE = 256


class ReclaimMode(StrEnum):
    """Why a worker's requests are taken back."""

    DEAD = "dead"  # its node went silent
    CRASHED = "crashed"  # its node saw it die
    RELEASED = "released"  # it leaves in good order
    RECOVERED = "recovered"  # it lives on, but the answer to its claim was lost


def reclaim_keys(key: VersionKey, worker_id: str) -> list[str]:
    keys = VersionKeys.of(key)
    return ordered_keys("reclaim", keys, lease=keys.lease_prefix + worker_id)


def reclaim_arguments(
    worker_id: str,
    mode: ReclaimMode,
    reason: str = "worker_crashed",
    dead_after_ms: int = 0,
    max_attempts: int = 0,
) -> list[str | int]:
    """Returns ARGV of the script; the last three matter only when the worker is dead."""
    return [worker_id, str(mode), dead_after_ms, max_attempts, reason, AT_ONCE, REPLY_TTL_MS]
