"""Models that are registered anew, scaled and unregistered while parts fail or are busy."""

import hashlib
import os
import signal
from dataclasses import replace

import pytest

from batching.store.registry import Registry
from tests.chaos.crowd import Crowd
from tests.chaos.rig import Rig
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import eventually

SAYS_NEW = """
def handle(data, context):
    return None if data is None else ["new"] * len(data)
"""

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_node_that_missed_a_new_registration_serves_it_all_the_same(rig: Rig, crowd: Crowd) -> None:
    with rig.serve("renewed") as model:
        # Given a worker, and a node that hears nothing for a moment
        [pid] = model.pids()
        os.kill(rig.nodes[0].pid, signal.SIGSTOP)

        # When another archive takes over the name and version meanwhile
        files = {"handler.py": SAYS_NEW}
        archive = make_archive(rig.store, "renewed", files, config="jobQueueSize: 1000\n")
        content = (rig.store / archive).read_bytes()
        registry = Registry(rig.redis)
        spec = registry.resolve("renewed", None)
        registry.remove(spec.key)
        registry.create(replace(spec, archive_sha256=hashlib.sha256(content).hexdigest()))
        os.kill(rig.nodes[0].pid, signal.SIGCONT)

        # Then it is what is served from then on
        assert eventually(lambda: model.pids() not in ([], [pid]), 10)
        assert [one.answer for one in crowd.ask("renewed", ["hello"])] == ["new"]

        # And scaling replaces nobody
        [pid] = model.pids()
        rig.manage("PUT", "models/renewed", min_worker=2, synchronous="true")
        assert pid in model.pids()
