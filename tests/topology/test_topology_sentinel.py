"""The master dies, or freezes and comes back as a replica: no client hangs."""

import time

import pytest
import redis

from tests.chaos.crowd import Crowd, for_seconds
from tests.support import came_true, eventually
from tests.topology.servers import Node, SentinelGroup
from tests.topology.verdict import RECOVERED_S, check_nothing_stays, check_recovery
from tests.topology.whole_suite import is_long

FAILOVER_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def wait_failed_over(group: SentinelGroup, old: Node) -> float:
    """Waits for another master that takes writes; returns when there was one."""

    def takes_writes() -> bool:
        try:
            master = group.master()
            return master is not old and bool(master.client.set("probe", "1", px=1000))
        except redis.RedisError:
            return False

    assert came_true(takes_writes, FAILOVER_S), "no failover"
    return time.monotonic()


only_long = pytest.mark.skipif(not is_long(), reason="make topology has the long form")


@pytest.mark.parametrize(
    "master",
    ["killed", *(pytest.param(it, marks=only_long) for it in ("thawed at once", "thawed later"))],
)
def test_no_client_hangs_when_the_master_fails(on_sentinels, note, master):
    rig, group = on_sentinels
    with Crowd(rig.port) as crowd, rig.serve("m", pace_s=0.01, batch_size=4) as model:
        # When the master dies under load, or stands still until another one took over
        with crowd.flow("m", 40, "r", timeout_ms=20_000):
            for_seconds(1.0)
            old = group.master()
            broken_at = time.monotonic()
            old.kill() if master == "killed" else old.freeze()
            over_at = wait_failed_over(group, old)
            if master != "thawed at once":
                for_seconds(RECOVERED_S + 1.5)
            if master != "killed":
                # It takes writes, from clients that have not noticed, until the sentinels tell it.
                old.thaw()
                eventually(lambda: is_replica(old), FAILOVER_S)
                for_seconds(1.0)

        # Then each client has an answer, soon a good one again, and nothing is left behind
        check_recovery(crowd.wait(), broken_at, over_at, note)
        check_nothing_stays(model, crowd)


def is_replica(node: Node) -> bool:
    try:
        return bool(node.client.info("replication")["role"] == "slave")
    except redis.RedisError:
        return False
