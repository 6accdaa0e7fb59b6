"""A server in parts on servers of its own: each test may break what it likes."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from batching.store.clients import connect
from tests.chaos.rig import Rig
from tests.topology.servers import Cluster, SentinelGroup

FERRY_SLOT = key_slot(b"{ferry}")


@pytest.fixture
def on_sentinels(tmp_path):
    """An ingress and a node, a master with two replicas, three sentinels."""
    with SentinelGroup() as group, contextlib.closing(connect(group.url)) as client:
        direct = f"redis://{group.master().address}"
        with contextlib.closing(Rig(tmp_path, group.url, direct_url=direct)) as rig:
            rig.redis.close()
            rig.redis = client
            yield rig, group


@contextlib.contextmanager
def rig_on_cluster(folder: Path, **options: Any) -> Iterator[tuple[Rig, Cluster]]:
    """A cluster with an ingress and a node on it; the rig's client sees all keys."""
    with Cluster(**options) as cluster, cluster.admin() as admin:
        direct = f"redis://{cluster.owner(FERRY_SLOT).address}"
        with contextlib.closing(Rig(folder, cluster.url, direct_url=direct)) as rig:
            rig.redis.close()
            rig.redis = admin
            yield rig, cluster


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory):
    with rig_on_cluster(tmp_path_factory.mktemp("rig")) as started:
        yield started


@pytest.fixture
def on_cluster_of_three(whole_cluster):
    """An ingress and a node, three masters without replicas."""
    rig, _ = whole_cluster
    yield whole_cluster
    rig.restore()
    rig.unregister_all()


@pytest.fixture
def on_cluster_of_six(tmp_path):
    """An ingress and a node, three masters with a replica each."""
    with rig_on_cluster(tmp_path, replicas=1) as started:
        yield started


@pytest.fixture
def note(capsys):
    """Shows a figure in the middle of the run."""

    def show(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return show
