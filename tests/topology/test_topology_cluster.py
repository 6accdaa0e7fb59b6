"""A cluster: models on different masters, a slot that moves, a master that dies or forgets."""

import time

import pytest
import redis
from redis.crc import key_slot

from batching.models.spec import VersionKey
from batching.store.keys import VersionKeys
from tests.chaos import checker
from tests.chaos.crowd import Crowd, for_seconds
from tests.chaos.rig import Rig
from tests.support import eventually, is_permanent
from tests.topology.conftest import FERRY_SLOT
from tests.topology.servers import Cluster, Node
from tests.topology.verdict import (
    RECOVERED_S,
    check_nothing_stays,
    check_recovery,
)
from tests.topology.whole_suite import is_long

FAILOVER_S = 20.0
LARGE_BYTES = 200_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Started = tuple[Rig, Cluster]


def slot_of(model_name: str) -> int:
    return key_slot(VersionKeys.of(VersionKey(model_name, "1.0")).tag.encode())


def model_on(cluster: Cluster, node: Node) -> str:
    """Returns a name whose keys are on this master."""
    names = (f"m{number}" for number in range(1000))
    return next(name for name in names if cluster.owner(slot_of(name)) is node)


def test_cluster_serves_models_on_all_of_its_masters(on_cluster_of_three):
    rig, cluster = on_cluster_of_three
    names = [model_on(cluster, node) for node in cluster.masters]
    # Given a model on each master
    for name in names:
        archive, _ = rig.archive(name)
        rig.register(archive, batch_size=4, max_batch_delay=5)
    with Crowd(rig.port) as crowd:
        # When: small and large requests, all at once
        small_ones = [crowd.send(name, [f"{name} {n}" for n in range(20)]) for name in names]
        large_ones = [crowd.send(name, [f"{name}"], padding=LARGE_BYTES) for name in names]
        long_ones = [crowd.send(name, [f"long {LARGE_BYTES}|x"]) for name in names]
        crowd.wait()
        # Then
        assert checker.statuses(crowd.log) == {"200": 22 * len(names)}
        assert checker.answers(crowd.log) == []
        assert all(len(sent.answer) >= LARGE_BYTES for [sent] in large_ones + long_ones)
        assert len(small_ones) == len(names)
        # When another node joins and a model is scaled
        rig.add_node()
        rig.manage("PUT", f"models/{names[1]}", min_worker=2, synchronous="true")
        eventually(lambda: len(rig.worker_pids(names[1])) == 4, 20)
        # Then what is forgotten is forgotten by every master
        for name in names:
            assert rig.manage("DELETE", f"models/{name}").status_code == 200
            assert crowd.ask(name, ["gone"])[0].status == 404
    left = {key.decode() for key in rig.redis.scan_iter(target_nodes=redis.RedisCluster.PRIMARIES)}
    eternal = [key for key in left if rig.redis.ttl(key) == -1 and not is_permanent(key, left)]
    assert [key for key in eternal if not key.startswith("{ferry}:rq:")] == []
    assert all(key.startswith(("{ferry}:", "{model2:")) for key in left)


@pytest.mark.parametrize("what", ["model", "registry"])
def test_slot_that_moves_under_load_loses_nothing(on_cluster_of_three, note, what):
    rig, cluster = on_cluster_of_three
    with Crowd(rig.port) as crowd, rig.serve("m", pace_s=0.01, batch_size=4) as model:
        # When the slot of the model's keys, or of the registry's, goes to another master
        slot = slot_of("m") if what == "model" else FERRY_SLOT
        target = next(node for node in cluster.masters if node is not cluster.owner(slot))
        with crowd.flow("m", 60, "r", timeout_ms=20_000):
            for_seconds(0.5)
            started = time.monotonic()
            cluster.move_slot(slot, target)
            moved_s = time.monotonic() - started
            for_seconds(2.0)

        # Then every request is answered well
        log = crowd.wait()
        found = checker.statuses(log)
        slowest_s = max(one.seconds for one in log)
        note(f"{what}'s slot moved in {moved_s:.2f} s: {found}; slowest answer {slowest_s:.1f} s")
        assert set(found) == {"200"}
        assert cluster.owner(slot) is target
        # And what comes afterwards is seen by all
        assert rig.manage("PUT", "models/m", min_worker=2, synchronous="true").status_code == 200
        model.wait_staffed(2)
        model.check(crowd)


@pytest.mark.skipif(not is_long(), reason="make topology has the long form")
@pytest.mark.parametrize("whose", ["model", "registry"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_no_client_hangs_when_a_master_of_the_cluster_fails(on_cluster_of_six, note, how, whose):
    rig, cluster = on_cluster_of_six
    home = cluster.owner(FERRY_SLOT)
    old = home if whose == "registry" else next(m for m in cluster.masters if m is not home)
    name = model_on(cluster, old if whose == "model" else cluster.masters[0])
    slot = slot_of(name) if whose == "model" else FERRY_SLOT
    with Crowd(rig.port) as crowd, rig.serve(name, pace_s=0.01, batch_size=4) as model:
        # When a master dies under load, or stands still until its replica took over
        with crowd.flow(name, 40, "r", timeout_ms=20_000):
            for_seconds(1.0)
            broken_at = time.monotonic()
            old.kill() if how == "killed" else old.freeze()
            eventually(lambda: has_taken_over(cluster, slot, old), FAILOVER_S)
            over_at = time.monotonic()
            for_seconds(RECOVERED_S + 1.5)
            if how == "frozen":
                old.thaw()
                for_seconds(2.0)

        # Then
        check_recovery(crowd.wait(), broken_at, over_at, note)
        check_nothing_stays(model, crowd)


def has_taken_over(cluster: Cluster, slot: int, old: Node) -> bool:
    """Returns whether another node has the slot and all of the living ones serve."""
    alive = [node for node in cluster.nodes if node is not old]
    try:
        return cluster.owner(slot, alive) is not old and all(map(serves, alive))
    except redis.RedisError:
        return False


def serves(node: Node) -> bool:
    return bool(node.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
