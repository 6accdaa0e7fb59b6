"""Requests for versions that have no workers any more are refused."""

import asyncio

import pytest

from batching.store.node_queue import NodeQueue
from tests.support import DEAD_AFTER_MS, KEY, make_spec
from workers.node.node import UnregisteredVersions


def look_once(harness, before, after):
    """Follows the registry from one state to another and looks once; returns what is left."""

    async def run():
        client = harness.backend.connect_async()
        versions = UnregisteredVersions(NodeQueue(client, DEAD_AFTER_MS))
        versions.follow([], before)
        versions.follow(before.values(), after)
        await versions.look()
        await client.aclose()
        return [*versions.ended]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("min_worker", "is_gone", "left", "queued"),
    [(0, True, [], []), (0, False, [KEY], []), (1, True, [], ["a"])],
    ids=["its worker has gone with the only node", "it is silent, perhaps not dead", "wanted"],
)
def test_new_node_refuses_requests_for_versions_that_were_scaled_to_nothing(
    min_worker, is_gone, left, queued, harness
):
    # Given
    wanted = {KEY: make_spec(min_worker=min_worker)}
    harness.submit("a")
    if is_gone:
        harness.client.delete(harness.keys.worker_beats)
    else:
        harness.silence_worker()
    # When / Then
    assert look_once(harness, wanted, wanted) == left
    assert harness.queued() == queued
    if not queued:
        assert harness.reply_value("a") == b"a!no_worker"
